//! Processes of an instance, with the host's ends of their streams.

use std::time::Duration;

use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::kernel_socket::KernelSocket;

/// A process of a guest whose standard input is at its end.
pub struct Process {
    /// The number that the host gave it; events name it.
    pub number: u32,
    pub stdout: Receiver,
    pub stderr: Receiver,
}

/// The host's ends of the standard streams of a process.
pub struct PipedProcess {
    pub stdin: Sender,
    pub stdout: Receiver,
    pub stderr: Receiver,
}

/// An interpreter with a socket for code as descriptor 3.
pub struct InterpreterProcess {
    pub process: Process,
    pub socket: KernelSocket,
    /// Whether it was forked from a warm interpreter, which has the code of its kernel already.
    pub is_forked: bool,
    /// `None` if the next server can find its streams already.
    pub pending_store: Option<PendingStore>,
}

/// Timeout for storing something for the next server. A request that times out is still carried out later.
const STORE_TIMEOUT: Duration = Duration::from_secs(2);

/// Streams, or a record, on their way to the process that stores them for the next server.
pub struct PendingStore(pub(crate) oneshot::Receiver<Result<(), String>>);

impl PendingStore {
    /// Waits until they are stored.
    pub async fn confirm(self) -> Result<(), String> {
        match timeout(STORE_TIMEOUT, self.0).await {
            Ok(Ok(stored)) => stored,
            Ok(Err(_)) => Err("the launcher process has ended".into()),
            Err(_) => Err("the launcher did not respond in time".into()),
        }
    }
}
