//! The host's control channel to the init of a sandbox: requests out, events in.

#[cfg(fuzzing)]
pub(crate) mod fuzzing;

mod egress_ports;
mod files;

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;
use std::time::{Duration, Instant};

use ringfence_core::sync::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::Signal;

use crate::error::Error;
use crate::protocol::{Channel, FileAction, InitReport, InitRequest, SignalTarget, errno_from_wire};
use ringfence_core::Command;

pub use egress_ports::EgressPortError;
pub use files::{FileAccess, FileError, Listing, PendingWorkspaceUsage, WorkspaceUsage};

/// The exit status of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitStatus {
    Exited(i32),
    Killed(i32),
}

/// An event in a sandbox. The host chooses the numbers of processes; 0 is the command of the spec.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    Started {
        process: u32,
    },
    /// The process could not be started.
    StartFailed {
        process: u32,
        errno: Errno,
    },
    Ended {
        process: u32,
        status: ExitStatus,
    },
    /// The sandbox ended, or its init violated the protocol.
    Lost,
}

/// Maximum time to send a request that does not fit into the socket buffer. The caller may be the thread that serves
/// all sessions.
const SEND_TIMEOUT: Duration = Duration::from_millis(500);

/// Maximum time between the first and the last byte of a report.
const REPORT_TIMEOUT: Duration = Duration::from_secs(5);

/// The control channel of a sandbox's owner.
///
/// Requests may be sent from several threads. Only one thread may read events.
pub struct Control {
    channel: Channel,
    /// Locked while a frame is sent, which may take several system calls.
    sending: Mutex<()>,
}

impl Control {
    pub(crate) fn new(channel: impl Into<Channel>) -> Self {
        Self { channel: channel.into(), sending: Mutex::default() }
    }

    /// Sends a signal to a process of the sandbox.
    pub fn signal(&self, process: u32, signal: Signal, target: SignalTarget) -> Result<(), Error> {
        self.send_request(&InitRequest::Signal { process, number: signal.as_raw(), target }, &[])
    }

    /// Returns a descriptor that becomes readable when the init has handled all earlier requests, or has ended.
    pub fn request_barrier(&self) -> Result<OwnedFd, Error> {
        const STEP: &str = "create a socket for the reply of the init";
        let (ours, theirs) = Channel::pair().map_err(Error::setup(STEP))?;
        // The init always refuses to open the workspace itself. Its reply shows that it has read this far.
        self.send_request(&InitRequest::File { path: Vec::new(), action: FileAction::Read }, &[theirs.as_fd()])?;
        let reply = OwnedFd::from(ours);
        rustix::io::ioctl_fionbio(&reply, true).map_err(Error::setup(STEP))?;
        Ok(reply)
    }

    /// Starts a process with these descriptors, from 0 on. An event reports the result.
    pub fn spawn(
        &self,
        process: u32,
        command: &Command,
        environment: &BTreeMap<String, String>,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), Error> {
        command.validate()?;
        let (command, environment) = (command.clone(), environment.clone());
        self.send_request(&InitRequest::Start { process, command, environment }, descriptors)
    }

    /// Forks the interpreter of a sandbox that was forked from a zygote, with these descriptors, from 0 on. The last
    /// descriptor is the interpreter's control channel. An event reports the result.
    pub fn fork_interpreter(
        &self,
        process: u32,
        workdir: &Path,
        environment: &BTreeMap<String, String>,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), Error> {
        let (workdir, environment) = (workdir.to_owned(), environment.clone());
        self.send_request(&InitRequest::Fork { process, workdir, environment }, descriptors)
    }

    /// Reads the next event. Blocks until there is one.
    pub fn next_event(&self) -> Event {
        match self.next_report() {
            Ok((InitReport::Started { process }, _)) => Event::Started { process },
            Ok((InitReport::CommandFailed { process, errno }, _)) => {
                Event::StartFailed { process, errno: errno_from_wire(errno) }
            }
            Ok((InitReport::Exited { process, code }, _)) => {
                Event::Ended { process, status: ExitStatus::Exited(code & 0xff) }
            }
            Ok((InitReport::Killed { process, signal }, _)) if (1..=64).contains(&signal) => {
                Event::Ended { process, status: ExitStatus::Killed(signal) }
            }
            // Other reports are invalid after the start. The owner ends the sandbox by dropping it.
            _ => Event::Lost,
        }
    }

    /// Whether [`Self::next_event`] would return immediately.
    pub fn has_event(&self) -> bool {
        let mut watched = [PollFd::new(&self.channel, PollFlags::IN)];
        poll(&mut watched, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }

    pub(crate) fn send_request(&self, request: &InitRequest, passed: &[BorrowedFd<'_>]) -> Result<(), Error> {
        let _sending = self.sending.lock();
        match self.channel.send_with_deadline(request, passed, Some(Instant::now() + SEND_TIMEOUT)) {
            Ok(()) => Ok(()),
            // An init reads its requests immediately unless the guest prevents that.
            Err(Errno::AGAIN) => Err(Error::SandboxBusy),
            Err(Errno::TIMEDOUT) => {
                // A part of the frame was sent, so no other frame can follow. The reader of events sees the end.
                self.channel.shut_down();
                Err(Error::SandboxLost)
            }
            Err(_) => Err(Error::SandboxLost),
        }
    }

    pub(crate) fn next_report(&self) -> Result<(InitReport, Vec<OwnedFd>), Error> {
        let received = self
            .channel
            .wait_readable()
            .and_then(|()| self.channel.receive_with_deadline(Some(Instant::now() + REPORT_TIMEOUT)));
        match received {
            Ok(Some(report)) => Ok(report),
            Ok(None) => Err(Error::SandboxLost),
            Err(_) => Err(Error::Protocol("the init of the sandbox sent an invalid frame")),
        }
    }
}

/// Readable when [`Control::next_event`] would return immediately.
impl AsFd for Control {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

impl AsRawFd for Control {
    fn as_raw_fd(&self) -> RawFd {
        self.channel.as_fd().as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    fn request(size: usize) -> InitRequest {
        InitRequest::File { path: vec![OsString::from("x".repeat(size))], action: FileAction::Read }
    }

    #[test]
    fn request_to_full_queue_fails_immediately_and_leaves_channel_usable() {
        let (ours, theirs) = Channel::pair().unwrap();
        let control = Control::new(ours);
        let refused = (0..1000).find_map(|_| control.send_request(&request(5_000), &[]).err());
        assert!(matches!(refused, Some(Error::SandboxBusy)), "{refused:?}");
        let mut watched = [PollFd::new(&theirs, PollFlags::IN)];
        while poll(&mut watched, Some(&Timespec::default())) == Ok(1) {
            assert!(theirs.receive::<InitRequest>().unwrap().is_some(), "each request is complete");
        }
        assert!(control.send_request(&request(1), &[]).is_ok());
    }

    #[test]
    fn partially_sent_request_ends_the_channel() {
        let (ours, theirs) = Channel::pair().unwrap();
        let control = Control::new(ours);
        assert!(matches!(control.send_request(&request(400_000), &[]), Err(Error::SandboxLost)));
        assert_eq!(control.next_event(), Event::Lost);
        assert!(theirs.receive::<InitRequest>().is_err());
    }
}
