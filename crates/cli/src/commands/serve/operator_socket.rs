//! The server's socket in the state directory, for `ringfence session` and `ringfence server`.

use std::path::Path;

use ringfence_gateway::{Gateway, serve_operator};
use tokio::net::UnixListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::failure::Failure;
use crate::socket_directory::{Owners, SocketDirectory, SocketFile};

/// The open socket, or nothing if it could not be opened.
pub(super) struct OperatorSocket(Option<(JoinHandle<()>, SocketFile)>);

/// Opens the socket. If the state directory cannot be used, logs a warning; the server serves its clients anyway.
pub(super) fn open(state: &Path, gateway: &Gateway, shutdown: &CancellationToken) -> OperatorSocket {
    match listen(state, gateway, shutdown) {
        Ok(opened) => OperatorSocket(Some(opened)),
        Err(failure) => {
            tracing::warn!("`ringfence session` cannot find this server: {failure}");
            OperatorSocket(None)
        }
    }
}

fn listen(
    state: &Path,
    gateway: &Gateway,
    shutdown: &CancellationToken,
) -> Result<(JoinHandle<()>, SocketFile), Failure> {
    let failed = |error: std::io::Error| Failure::new("cannot create the operator socket").caused_by(&error);
    let (listener, file) = SocketDirectory::create(state, Owners::Servers)?.listen().map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let listener = UnixListener::from_std(listener).map_err(failed)?;
    let owner = rustix::process::geteuid().as_raw();
    let serving = serve_operator(listener, owner, gateway.clone(), shutdown.clone());
    Ok((tokio::spawn(serving), file))
}

impl OperatorSocket {
    /// Waits until the socket is not served any more, and removes it.
    pub(super) async fn close(self) {
        if let Some((serving, _file)) = self.0 {
            let _ = serving.await;
        }
    }
}
