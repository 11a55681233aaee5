//! Opens ports for transparent connections in a running sandbox.

use std::net::TcpListener;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::Control;
use crate::egress::check_transparent_listener;
use crate::error::Error;
use crate::protocol::{Channel, InitRequest, ListenReport, errno_from_wire};
use ringfence_core::MAX_EGRESS_PORTS;

/// The reason why a port could not be opened.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum EgressPortError {
    #[error("a process in the sandbox listens on port {0}")]
    InUse(u16),
    #[error("port {0} is open already")]
    AlreadyOpen(u16),
    #[error("port {0} cannot be opened: the sandbox has no network, or uses the port for its own services")]
    NotAllowed(u16),
    #[error("the sandbox has {MAX_EGRESS_PORTS} ports besides 80 and 443, which is the maximum")]
    TooMany,
    #[error("the sandbox did not respond in time")]
    TimedOut,
    #[error("the sandbox has ended")]
    SandboxLost,
    #[error("system call failed: {0}")]
    System(Errno),
}

impl Control {
    /// Opens a listener for connections of the guest to this port of any address. Blocks, at most for `timeout`.
    ///
    /// The local address of an accepted connection is the one that the guest dialled.
    pub fn open_egress_port(&self, port: u16, timeout: Duration) -> Result<TcpListener, EgressPortError> {
        let (ours, theirs) = Channel::pair().map_err(EgressPortError::System)?;
        let sent = self.send_request(&InitRequest::Listen { port }, &[theirs.as_fd()]);
        sent.map_err(|error| match error {
            Error::SandboxBusy => EgressPortError::TimedOut,
            _ => EgressPortError::SandboxLost,
        })?;
        // While this process has the init's end, it does not see that the init closes it.
        drop(theirs);
        receive_listener(&ours, port, Instant::now() + timeout)
    }
}

/// Receives the reply of the init. A reply that the protocol does not allow counts as the loss of the sandbox.
pub(super) fn receive_listener(
    replies: &Channel,
    port: u16,
    deadline: Instant,
) -> Result<TcpListener, EgressPortError> {
    let (report, passed) = match replies.receive_with_deadline(Some(deadline)) {
        Ok(Some(received)) => received,
        Err(Errno::TIMEDOUT) => return Err(EgressPortError::TimedOut),
        Ok(None) | Err(_) => return Err(EgressPortError::SandboxLost),
    };
    match report {
        ListenReport::Listening => {
            let listener = passed.into_iter().next().and_then(|passed| check_transparent_listener(passed, port));
            listener.ok_or(EgressPortError::SandboxLost)
        }
        ListenReport::InUse => Err(EgressPortError::InUse(port)),
        ListenReport::AlreadyOpen => Err(EgressPortError::AlreadyOpen(port)),
        ListenReport::NotAllowed => Err(EgressPortError::NotAllowed(port)),
        ListenReport::TooMany => Err(EgressPortError::TooMany),
        ListenReport::Failed { errno } => Err(EgressPortError::System(errno_from_wire(errno))),
    }
}
