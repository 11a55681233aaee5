//! The server's socket in the state directory, for `ringfence session`.

use std::path::Path;

use ringfence_gateway::{Gateway, serve_operator};
use tokio::net::UnixListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::failure::Failure;
use crate::state::{Servers, SocketFile};

/// The socket while it is served.
pub(super) struct OperatorSocket(Option<(JoinHandle<()>, SocketFile)>);

/// Opens it. A server whose state directory cannot be used serves its clients all the same, and says so.
pub(super) fn open(state: &Path, gateway: &Gateway, shutdown: &CancellationToken) -> OperatorSocket {
    match listen(state, gateway, shutdown) {
        Ok(opened) => OperatorSocket(Some(opened)),
        Err(failure) => {
            tracing::warn!("`ringfence session` will not find this server: {failure}");
            OperatorSocket(None)
        }
    }
}

fn listen(
    state: &Path,
    gateway: &Gateway,
    shutdown: &CancellationToken,
) -> Result<(JoinHandle<()>, SocketFile), Failure> {
    let failed = |error: std::io::Error| Failure::new("its socket cannot be made").because(&error);
    let (listener, file) = Servers::make(state)?.listen().map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let listener = UnixListener::from_std(listener).map_err(failed)?;
    let owner = rustix::process::geteuid().as_raw();
    let serving = serve_operator(listener, owner, gateway.clone(), shutdown.clone());
    Ok((tokio::spawn(serving), file))
}

impl OperatorSocket {
    /// Waits until it is served no more, and removes it.
    pub(super) async fn close(self) {
        if let Some((serving, _file)) = self.0 {
            let _ = serving.await;
        }
    }
}
