//! The supervisor's socket in the state directory, for `ringfence status`: whoever connects is told how it stands.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ringfence_supervisor::Supervisor;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{UnixListener, UnixStream};
use tokio_util::sync::CancellationToken;

use crate::failure::Failure;
use crate::state::{Servers, SocketFile};

/// How long somebody may take to read the answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// Opens it until `end`. A supervisor whose state directory cannot be used supervises all the same, and says so.
pub(super) fn open(state: &Path, supervisor: &Arc<Supervisor>, end: &CancellationToken) -> Option<SocketFile> {
    match listen(state, Arc::clone(supervisor), end.clone()) {
        Ok(file) => Some(file),
        Err(failure) => {
            tracing::warn!("`ringfence status` will not find this supervisor: {failure}");
            None
        }
    }
}

fn listen(state: &Path, supervisor: Arc<Supervisor>, end: CancellationToken) -> Result<SocketFile, Failure> {
    let failed = |error: std::io::Error| Failure::new("its socket cannot be made").because(&error);
    let (listener, file) = Servers::make_for_supervisors(state)?.listen().map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let listener = UnixListener::from_std(listener).map_err(failed)?;
    tokio::spawn(async move {
        loop {
            tokio::select! {
                () = end.cancelled() => return,
                accepted = listener.accept() => match accepted {
                    // One after the other: only the owner of the directory gets here.
                    Ok((stream, _)) => drop(tokio::time::timeout(PATIENCE, tell(stream, &supervisor)).await),
                    // Too many files may be open just then.
                    Err(_) => tokio::time::sleep(PATIENCE).await,
                },
            }
        }
    });
    Ok(file)
}

async fn tell(mut stream: UnixStream, supervisor: &Supervisor) {
    if let Ok(status) = serde_json::to_vec(&supervisor.status()) {
        let _ = stream.write_all(&status).await;
    }
}
