//! Stores listeners for transparent connections in the launcher, from which the next server gets them.

use std::net::TcpListener;

use ringfence_sandbox::Error;
use rustix::io::Errno;
use rustix::process::Pid;

use super::launcher::LauncherHandle;
use crate::process::PendingStore;

/// The listeners of one sandbox. Cheap to clone.
#[derive(Clone)]
pub(crate) struct EgressListeners {
    launcher: LauncherHandle,
    pid: Pid,
}

impl EgressListeners {
    pub(super) fn new(launcher: LauncherHandle, pid: Pid) -> Self {
        Self { launcher, pid }
    }

    /// Stores a duplicate of a listener.
    pub(crate) fn store(&self, listener: &TcpListener) -> Result<PendingStore, Error> {
        let duplicate = listener.try_clone().map_err(|error| Error::Setup {
            step: "duplicate a listener".into(),
            source: Errno::from_io_error(&error).unwrap_or(Errno::IO),
        })?;
        self.launcher.store_egress_listener(self.pid, duplicate.into())
    }
}
