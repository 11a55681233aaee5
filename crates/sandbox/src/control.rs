//! Orders to the init of a sandbox, and what it has to say.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::files::FileAction;
use crate::frame::{Channel, Order, Report};
use crate::launch::errno_of;
use ringfence_core::Command;

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitStatus {
    Exited(i32),
    Killed(i32),
}

/// Something that the sandbox has to say. Processes have the numbers that the host gave them; 0 is the one
/// that the sandbox was made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    Started {
        process: u32,
    },
    /// It could not be started.
    StartFailed {
        process: u32,
        errno: Errno,
    },
    Ended {
        process: u32,
        status: ExitStatus,
    },
    /// The sandbox is gone.
    Lost,
}

/// Who shall get a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SignalTarget {
    Process,
    /// The command's process group, as a terminal would.
    ProcessGroup,
    /// Its group, and all that it has started and that still belongs to it, in whatever group.
    ProcessTree,
}

/// How long an order that is too large for the socket may take. Whoever orders may be the thread that serves all others.
const LARGE_WITHIN: Duration = Duration::from_millis(500);

/// How long the rest of a word may take whose beginning is there.
const WORD_WITHIN: Duration = Duration::from_secs(5);

/// One owner's hold on a sandbox's init.
///
/// May be used from several threads: orders do not mix. What the sandbox says is for one listener.
pub struct Control {
    channel: Channel,
    /// Held while a frame is sent, which may take several calls.
    sending: Mutex<()>,
}

impl Control {
    pub(crate) fn new(channel: impl Into<Channel>) -> Self {
        Self { channel: channel.into(), sending: Mutex::default() }
    }

    /// Passes a signal on.
    pub fn signal(&self, process: u32, signal: Signal, target: SignalTarget) -> Result<(), Error> {
        self.order(&Order::Signal { process, number: signal.as_raw(), target }, &[])
    }

    /// A descriptor that is readable once the init has carried out all orders until now, or is gone.
    pub fn request_barrier(&self) -> Result<OwnedFd, Error> {
        let (ours, theirs) = Channel::pair().map_err(Error::setup("ask the init"))?;
        // A question to which the answer is always no, given on a socket of its own.
        self.order(&Order::File { path: Vec::new(), action: FileAction::Read }, &[theirs.as_fd()])?;
        let answer = OwnedFd::from(ours);
        rustix::io::ioctl_fionbio(&answer, true).map_err(Error::setup("ask the init"))?;
        Ok(answer)
    }

    /// Starts another process, with these descriptors from 0 on. An event says what came of it.
    pub fn spawn(
        &self,
        process: u32,
        command: &Command,
        environment: &BTreeMap<String, String>,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), Error> {
        command.validate()?;
        let (command, environment) = (command.clone(), environment.clone());
        self.order(&Order::Start { process, command, environment }, descriptors)
    }

    /// Forks the interpreter of a sandbox that was born warm, with these descriptors from 0 on, the last of which is
    /// its control channel. An event says what came of it.
    pub fn fork_interpreter(
        &self,
        process: u32,
        workdir: &Path,
        environment: &BTreeMap<String, String>,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), Error> {
        let (workdir, environment) = (workdir.to_owned(), environment.clone());
        self.order(&Order::Fork { process, workdir, environment }, descriptors)
    }

    /// Reads what the sandbox has to say; blocks until there is something.
    pub fn next_event(&self) -> Event {
        match self.report() {
            Ok((Report::Started { process }, _)) => Event::Started { process },
            Ok((Report::CommandFailed { process, errno }, _)) => Event::StartFailed { process, errno: errno_of(errno) },
            Ok((Report::Exited { process, code }, _)) => Event::Ended { process, status: ExitStatus::Exited(code & 0xff) },
            Ok((Report::Killed { process, signal }, _)) if (1..=64).contains(&signal) => {
                Event::Ended { process, status: ExitStatus::Killed(signal) }
            }
            // Whatever else it says now makes no sense; it is ended when this is dropped.
            _ => Event::Lost,
        }
    }

    /// Whether [`Self::next_event`] would not wait.
    pub fn has_event(&self) -> bool {
        let mut watched = [PollFd::new(&self.channel, PollFlags::IN)];
        poll(&mut watched, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }

    pub(crate) fn order(&self, order: &Order, passed: &[BorrowedFd<'_>]) -> Result<(), Error> {
        let _sending = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        match self.channel.send_by(order, passed, Some(Instant::now() + LARGE_WITHIN)) {
            Ok(()) => Ok(()),
            // An init reads its orders in no time, unless the guest keeps it from that.
            Err(Errno::AGAIN) => Err(Error::SandboxBusy),
            Err(Errno::TIMEDOUT) => {
                // A part of it is on its way, so nothing can follow. Whoever waits for what the sandbox says hears that
                // it is lost.
                self.channel.hang_up();
                Err(Error::LauncherLost)
            }
            Err(_) => Err(Error::LauncherLost),
        }
    }

    pub(crate) fn report(&self) -> Result<(Report, Vec<OwnedFd>), Error> {
        let heard =
            self.channel.wait_for_word().and_then(|()| self.channel.receive_by(Some(Instant::now() + WORD_WITHIN)));
        match heard {
            Ok(Some(report)) => Ok(report),
            Ok(None) => Err(Error::LauncherLost),
            Err(_) => Err(Error::Protocol("a frame that makes no sense")),
        }
    }
}

/// Readable when [`Control::next_event`] has something to say.
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

    fn order(size: usize) -> Order {
        Order::File { path: vec![OsString::from("x".repeat(size))], action: FileAction::Read }
    }

    #[test]
    fn an_order_that_nobody_reads_is_not_waited_for_and_costs_nothing() {
        let (ours, theirs) = Channel::pair().unwrap();
        let control = Control::new(ours);
        let refused = (0..1000).find_map(|_| control.order(&order(5_000), &[]).err());
        assert!(matches!(refused, Some(Error::SandboxBusy)), "{refused:?}");
        let mut watched = [PollFd::new(&theirs, PollFlags::IN)];
        while poll(&mut watched, Some(&Timespec::default())) == Ok(1) {
            assert!(theirs.receive::<Order>().unwrap().is_some(), "each is whole");
        }
        assert!(control.order(&order(1), &[]).is_ok());
    }

    #[test]
    fn a_part_of_an_order_is_the_end_of_the_sandbox() {
        let (ours, theirs) = Channel::pair().unwrap();
        let control = Control::new(ours);
        assert!(matches!(control.order(&order(400_000), &[]), Err(Error::LauncherLost)));
        assert_eq!(control.next_event(), Event::Lost);
        assert!(theirs.receive::<Order>().is_err());
    }
}
