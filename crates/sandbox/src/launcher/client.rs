//! The client's side of a launcher.

use std::cell::Cell;
use std::io::ErrorKind;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::Pid;

use super::protocol::{Handover, LauncherConfig, PROTOCOL, Reply, Request, ZygoteStatus};
use super::{BackgroundStreams, InitialProcess, short_path};
use crate::cgroup::MemoryCounters;
use crate::control::Control;
use crate::enforcement::Enforcement;
use crate::error::Error;
use crate::protocol::Channel;
use ringfence_core::{EgressSockets, Spec};

/// Maximum time for a reply, more than the slowest start takes.
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);

/// A connection to a launcher. If it is dropped without [`Launcher::end`], another client can adopt the launcher before
/// the lease expires.
pub struct Launcher {
    channel: Channel,
    /// A reply did not arrive in time. Later replies could be mistaken for it, so no more requests are sent.
    is_out_of_step: Cell<bool>,
}

/// A sandbox that the launcher has started.
pub struct Launched {
    pub control: Control,
    pub pid: Pid,
    /// Kills the sandbox, and is readable once it has ended.
    pub pidfd: OwnedFd,
    pub enforcement: Enforcement,
    /// Whether the sandbox has a warm interpreter to fork.
    pub is_warm: bool,
    /// The sockets inside the sandbox's network namespace, if the spec has egress.
    pub egress: Option<EgressSockets>,
    pub memory_counters: Option<MemoryCounters>,
}

/// A sandbox that was taken over from another client.
pub struct Adopted {
    pub launched: Launched,
    /// The number of the interpreter's process, and its streams.
    pub interpreter_streams: Option<(u32, Vec<OwnedFd>)>,
    pub background_streams: Vec<BackgroundStreams>,
    /// The number of previous owners.
    pub previous_owners: u32,
}

/// The result of [`Launcher::adopt`].
pub enum AdoptOutcome {
    /// The launcher is adopted. It has sandboxes with these inits.
    Adopted(Launcher, Vec<Pid>),
    /// The launcher has another client, or did not respond.
    Busy,
    /// No process listens on the socket any more.
    Gone,
}

impl Launcher {
    fn new(socket: OwnedFd) -> Self {
        Self { channel: Channel::from(socket), is_out_of_step: Cell::default() }
    }

    /// Configures a new launcher. `socket` is the peer of the socket that [`super::serve`] gets.
    pub fn configure(socket: OwnedFd, config: LauncherConfig) -> Result<Self, Error> {
        let launcher = Self::new(socket);
        match launcher.call(&Request::Configure(config))?.0 {
            Reply::Done => Ok(launcher),
            reply => Err(unexpected(reply)),
        }
    }

    /// Adopts a launcher whose client has ended. Blocks, at most for `timeout`.
    pub fn adopt(path: &Path, lease: Duration, timeout: Duration) -> AdoptOutcome {
        let connected = short_path(path).and_then(|(_directory, short)| UnixStream::connect(short));
        let stream = match connected {
            Ok(stream) => stream,
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {
                return AdoptOutcome::Gone;
            }
            // For example, this process has no free descriptors: the launcher may still run.
            Err(_) => return AdoptOutcome::Busy,
        };
        let launcher = Self::new(stream.into());
        let sent = launcher.send(&Request::Adopt { lease, protocol: PROTOCOL }, &[]);
        match sent.and_then(|()| launcher.receive_within(timeout)) {
            Ok((Reply::Adopted { sandboxes }, _)) => {
                AdoptOutcome::Adopted(launcher, sandboxes.into_iter().filter_map(Pid::from_raw).collect())
            }
            _ => AdoptOutcome::Busy,
        }
    }

    /// Requests a sandbox without a command. Several requests may be sent before [`Self::next_launched`] is called for
    /// each of them, with no other request in between.
    ///
    /// `initial` has the descriptors of the process, followed by those to retain for a next client.
    pub fn request_launch(
        &self,
        spec: Box<Spec>,
        warm: bool,
        initial: Option<(&InitialProcess, &[BorrowedFd<'_>])>,
    ) -> Result<(), Error> {
        let (initial, passed) =
            initial.map_or((None, [].as_slice()), |(initial, passed)| (Some(initial.clone()), passed));
        self.send(&Request::Launch { spec, warm, initial }, passed)
    }

    /// Returns the sandbox of the oldest launch request. Blocks until it is isolated.
    pub fn next_launched(&self) -> Result<Launched, Error> {
        // No other process would end a sandbox that this client cannot receive.
        let discard = |pid| {
            let _ = self.channel.send(&Request::Discard { pid }, &[]);
        };
        self.receive_sandbox(discard).map(|adopted| adopted.launched)
    }

    /// Takes over a sandbox of the previous client.
    pub fn take_over(&self, pid: Pid) -> Result<Adopted, Error> {
        self.send(&Request::TakeOver { pid: pid.as_raw_nonzero().get() }, &[])?;
        // A sandbox that this client cannot receive stays, because another client may.
        self.receive_sandbox(|_| {})
    }

    /// Stores the streams of a sandbox's interpreter in the launcher, for a next client.
    pub fn store_streams(&self, pid: Pid, process: u32, streams: &[OwnedFd]) -> Result<(), Error> {
        let passed: Vec<_> = streams.iter().map(std::os::fd::AsFd::as_fd).collect();
        self.send(&Request::StoreStreams { pid: pid.as_raw_nonzero().get(), process }, &passed)?;
        self.receive().map(drop)
    }

    /// Stores the background streams of an ended command in the launcher, for a next client.
    pub fn store_background_streams(&self, pid: Pid, streams: &BackgroundStreams) -> Result<(), Error> {
        let passed = streams.each_ref().map(std::os::fd::AsFd::as_fd);
        self.send(&Request::StoreBackgroundStreams { pid: pid.as_raw_nonzero().get() }, &passed)?;
        self.receive().map(drop)
    }

    /// Stores a listener for transparent connections in the launcher, for a next client.
    pub fn store_egress_listener(&self, pid: Pid, listener: &OwnedFd) -> Result<(), Error> {
        let request = Request::StoreEgressListener { pid: pid.as_raw_nonzero().get() };
        self.send(&request, &[std::os::fd::AsFd::as_fd(listener)])?;
        self.receive().map(drop)
    }

    /// Stores the record of a sandbox's credentials in the launcher, for a next client. The record is a file in memory,
    /// whose content the launcher never reads: inits are clones of it, with a copy of its memory.
    pub fn store_credentials(&self, pid: Pid, record: &OwnedFd) -> Result<(), Error> {
        let request = Request::StoreCredentials { pid: pid.as_raw_nonzero().get() };
        self.send(&request, &[std::os::fd::AsFd::as_fd(record)])?;
        self.receive().map(drop)
    }

    /// Returns the record of a sandbox's credentials, if a client has stored one.
    pub fn credentials(&self, pid: Pid) -> Result<Option<OwnedFd>, Error> {
        match self.call(&Request::Credentials { pid: pid.as_raw_nonzero().get() })? {
            (Reply::Done, record) => Ok(record.into_iter().next()),
            (reply, _) => Err(unexpected(reply)),
        }
    }

    /// Starts a zygote if there is none, and returns its status.
    pub fn warm_up(&self) -> Result<ZygoteStatus, Error> {
        match self.call(&Request::WarmUp)?.0 {
            Reply::Zygote(status) => Ok(status),
            reply => Err(unexpected(reply)),
        }
    }

    /// Whether a sandbox without a memory cgroup was killed because it exceeded its memory limit.
    pub fn has_exceeded_memory(&self, pid: Pid) -> Result<bool, Error> {
        match self.call(&Request::HasExceededMemory { pid: pid.as_raw_nonzero().get() })?.0 {
            Reply::HasExceededMemory { has_exceeded } => Ok(has_exceeded),
            reply => Err(unexpected(reply)),
        }
    }

    /// Ends the launcher and all its sandboxes.
    pub fn end(self) {
        let _ = self.channel.send(&Request::End, &[]);
    }

    /// Receives a sandbox. The kernel drops descriptors if this process has too many open files. The sandbox is then
    /// useless, and `on_missing` gets its pid.
    fn receive_sandbox(&self, on_missing: impl FnOnce(i32)) -> Result<Adopted, Error> {
        let (handover, passed) = match self.receive()? {
            (Reply::Handover(handover), passed) => (handover, passed),
            (reply, _) => return Err(unexpected(reply)),
        };
        let Handover {
            pid,
            enforcement,
            is_warm,
            egress_sockets,
            has_memory_counters,
            background_streams,
            streams,
            previous_owners,
        } = handover;
        let required = 2 + egress_sockets;
        if passed.len() < required {
            on_missing(pid);
            return Err(Error::Setup { step: "receive the descriptors of a sandbox".into(), source: Errno::MFILE });
        }
        let mut passed = passed.into_iter();
        let mut next = || passed.next().ok_or(Error::Protocol("the launcher sent a sandbox without a channel"));
        let (control, pidfd) = (next()?, next()?);
        let egress = EgressSockets::from_descriptors(passed.by_ref().take(egress_sockets));
        let memory_counters = if has_memory_counters { MemoryCounters::from_descriptors(&mut passed) } else { None };
        let launched = Launched {
            control: Control::new(control),
            pid: Pid::from_raw(pid).ok_or(Error::Protocol("the launcher sent an invalid process id"))?,
            pidfd,
            enforcement,
            is_warm,
            egress,
            memory_counters,
        };
        let interpreter_streams = streams.map(|(process, count)| (process, passed.by_ref().take(count).collect()));
        let mut next_pair = || Some([passed.next()?, passed.next()?]);
        let background_streams = (0..background_streams).map_while(|_| next_pair()).collect();
        Ok(Adopted { launched, interpreter_streams, background_streams, previous_owners })
    }

    fn call(&self, request: &Request) -> Result<(Reply, Vec<OwnedFd>), Error> {
        self.send(request, &[])?;
        self.receive()
    }

    fn send(&self, request: &Request, passed: &[BorrowedFd<'_>]) -> Result<(), Error> {
        if self.is_out_of_step.get() {
            return Err(Error::LauncherLost);
        }
        self.channel.send(request, passed).map_err(|_| Error::LauncherLost)
    }

    fn receive(&self) -> Result<(Reply, Vec<OwnedFd>), Error> {
        self.receive_within(REPLY_TIMEOUT)
    }

    fn receive_within(&self, timeout: Duration) -> Result<(Reply, Vec<OwnedFd>), Error> {
        if self.is_out_of_step.get() {
            return Err(Error::LauncherLost);
        }
        let Ok(Some(reply)) = self.channel.receive_with_deadline(Some(Instant::now() + timeout)) else {
            self.is_out_of_step.set(true);
            return Err(Error::LauncherLost);
        };
        Ok(reply)
    }
}

fn unexpected(reply: Reply) -> Error {
    match reply {
        Reply::Refused { message, hints } => Error::Refused { message, hints },
        _ => Error::Protocol("the launcher sent a reply to another request"),
    }
}
