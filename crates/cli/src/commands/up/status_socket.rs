//! The supervisor's socket in the state directory, for `ringfence status`. Each connection gets the status as JSON.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ringfence_supervisor::Supervisor;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{UnixListener, UnixStream};
use tokio_util::sync::CancellationToken;

use crate::failure::Failure;
use crate::socket_directory::{Owners, SocketDirectory, SocketFile};

/// Maximum time for a client to read the status.
const WRITE_TIMEOUT: Duration = Duration::from_secs(1);

/// Pause after a failed accept; the process may have too many open files at the moment.
const ACCEPT_RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Serves the socket until `end`. If the state directory cannot be used, logs a warning; the supervisor runs anyway.
pub(super) fn open(state: &Path, supervisor: &Arc<Supervisor>, end: &CancellationToken) -> Option<SocketFile> {
    match listen(state, Arc::clone(supervisor), end.clone()) {
        Ok(file) => Some(file),
        Err(failure) => {
            tracing::warn!("`ringfence status` cannot find this supervisor: {failure}");
            None
        }
    }
}

fn listen(state: &Path, supervisor: Arc<Supervisor>, end: CancellationToken) -> Result<SocketFile, Failure> {
    let failed = |error: std::io::Error| Failure::new("cannot create the status socket").caused_by(&error);
    let (listener, file) = SocketDirectory::create(state, Owners::Supervisors)?.listen().map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let listener = UnixListener::from_std(listener).map_err(failed)?;
    tokio::spawn(async move {
        loop {
            tokio::select! {
                () = end.cancelled() => return,
                accepted = listener.accept() => match accepted {
                    // One connection at a time is enough: only the owner of the directory can connect.
                    Ok((stream, _)) => drop(tokio::time::timeout(WRITE_TIMEOUT, write_status(stream, &supervisor)).await),
                    Err(_) => tokio::time::sleep(ACCEPT_RETRY_PAUSE).await,
                },
            }
        }
    });
    Ok(file)
}

async fn write_status(mut stream: UnixStream, supervisor: &Supervisor) {
    if let Ok(status) = serde_json::to_vec(&supervisor.status()) {
        let _ = stream.write_all(&status).await;
    }
}
