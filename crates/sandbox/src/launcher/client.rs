//! The client's side: asks a launcher for sandboxes.

use std::cell::Cell;
use std::io::ErrorKind;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::Pid;

use super::{LauncherConfig, InitialProcess, Handed, BackgroundStreams, PROTOCOL, Reply, Request, ZygoteStatus, short_path};
use crate::cgroup::MemoryGauge;
use crate::control::Control;
use crate::enforcement::Enforcement;
use crate::error::Error;
use crate::frame::Channel;
use ringfence_core::Spec;

/// More than the slowest start takes; a launcher that takes longer is stuck.
const DEADLINE: Duration = Duration::from_secs(30);

/// Dropped without [`Launcher::end`], it leaves the launcher to whoever takes over within the lease.
pub struct Launcher {
    channel: Channel,
    /// An answer did not come in time. Another's would be taken for it, so nothing more is asked.
    is_out_of_step: Cell<bool>,
}

/// A sandbox that the launcher has made.
pub struct Launched {
    pub control: Control,
    pub pid: Pid,
    /// Kills the sandbox, and is readable once it has ended.
    pub pidfd: OwnedFd,
    pub enforcement: Enforcement,
    /// Its interpreter can be forked.
    pub is_warm: bool,
    /// The listener inside the sandbox's network namespace, for the egress proxy.
    pub listener: Option<std::net::TcpListener>,
    pub gauge: Option<MemoryGauge>,
}

/// A sandbox that was another's before.
pub struct Adopted {
    pub launched: Launched,
    /// What was kept of its interpreter: the number of the process, and its streams.
    pub interpreter_streams: Option<(u32, Vec<OwnedFd>)>,
    pub background_streams: Vec<BackgroundStreams>,
    pub generation: u32,
}

/// What came of knocking at a launcher's door.
pub enum AdoptOutcome {
    /// It is ours now, with the inits of its sandboxes.
    Adopted(Launcher, Vec<Pid>),
    /// It has another client.
    Busy,
    /// Nobody is behind that door any more.
    Gone,
}

impl Launcher {
    fn new(socket: OwnedFd) -> Self {
        Self { channel: Channel::from(socket), is_out_of_step: Cell::default() }
    }

    /// Takes one end of the socket whose other end [`super::serve`] has.
    pub fn configure(socket: OwnedFd, charter: LauncherConfig) -> Result<Self, Error> {
        let launcher = Self::new(socket);
        match launcher.ask(&Request::Begin(charter))?.0 {
            Reply::Done => Ok(launcher),
            other => Err(unexpected(other)),
        }
    }

    /// Takes a launcher over that its client has left without a farewell, and that answers in time.
    pub fn adopt(path: &Path, lease: Duration, patience: Duration) -> AdoptOutcome {
        let connected = short_path(path).and_then(|(_directory, short)| UnixStream::connect(short));
        let stream = match connected {
            Ok(stream) => stream,
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {
                return AdoptOutcome::Gone;
            }
            // For want of descriptors, say: it may well live.
            Err(_) => return AdoptOutcome::Busy,
        };
        let launcher = Self::new(stream.into());
        let asked = launcher.send(&Request::Adopt { lease, protocol: PROTOCOL }, &[]);
        match asked.and_then(|()| launcher.answer_within(patience)) {
            Ok((Reply::Adopted { sandboxes }, _)) => {
                AdoptOutcome::Adopted(launcher, sandboxes.into_iter().filter_map(Pid::from_raw).collect())
            }
            _ => AdoptOutcome::Busy,
        }
    }

    /// Asks for a sandbox without a command of its own; [`Self::launched`] gives it. Several may be asked for before
    /// the first is given, and nothing else in between.
    ///
    /// With a first process come its descriptors, as many as it gets, and those to be kept for a next owner.
    pub fn request_launch(&self, spec: Box<Spec>, warm: bool, first: Option<(&InitialProcess, &[BorrowedFd<'_>])>) -> Result<(), Error> {
        let (first, passed) = first.map_or((None, [].as_slice()), |(first, passed)| (Some(first.clone()), passed));
        self.send(&Request::Launch { spec, warm, first }, passed)
    }

    /// The next one that was asked for. Blocks until it stands.
    pub fn next_launched(&self) -> Result<Launched, Error> {
        // Nobody else would end it.
        let discard = |pid| {
            let _ = self.channel.send(&Request::Discard { pid }, &[]);
        };
        self.handed(discard).map(|adopted| adopted.launched)
    }

    /// Takes over a sandbox.
    pub fn take_over(&self, pid: Pid) -> Result<Adopted, Error> {
        self.send(&Request::Take { pid: pid.as_raw_nonzero().get() }, &[])?;
        // What cannot be taken now may be by another.
        self.handed(|_| {})
    }

    /// Has the streams of a sandbox's interpreter kept for a next owner.
    pub fn store_streams(&self, pid: Pid, process: u32, streams: &[OwnedFd]) -> Result<(), Error> {
        let passed: Vec<_> = streams.iter().map(std::os::fd::AsFd::as_fd).collect();
        self.send(&Request::Keep { pid: pid.as_raw_nonzero().get(), process }, &passed)?;
        self.answer().map(drop)
    }

    /// Has the output of a command that has ended kept for a next owner.
    pub fn store_background_streams(&self, pid: Pid, output: &BackgroundStreams) -> Result<(), Error> {
        let passed = output.each_ref().map(std::os::fd::AsFd::as_fd);
        self.send(&Request::KeepLeftover { pid: pid.as_raw_nonzero().get() }, &passed)?;
        self.answer().map(drop)
    }

    /// Begins to warm up where that is possible, and tells how it stands.
    pub fn warm_up(&self) -> Result<ZygoteStatus, Error> {
        match self.ask(&Request::WarmUp)?.0 {
            Reply::Warmth(temperature) => Ok(temperature),
            other => Err(unexpected(other)),
        }
    }

    /// Whether a sandbox without a memory cgroup was killed for its memory.
    pub fn has_exceeded_memory(&self, pid: Pid) -> Result<bool, Error> {
        match self.ask(&Request::Examine { pid: pid.as_raw_nonzero().get() })?.0 {
            Reply::Examined { is_breached } => Ok(is_breached),
            other => Err(unexpected(other)),
        }
    }

    /// Ends the launcher and all its sandboxes.
    pub fn end(self) {
        let _ = self.channel.send(&Request::End, &[]);
    }

    /// The kernel leaves out descriptors that this process has no room for; `without` is told of a sandbox that is of no
    /// use then.
    fn handed(&self, without: impl FnOnce(i32)) -> Result<Adopted, Error> {
        let (handed, passed) = match self.answer()? {
            (Reply::Handed(handed), passed) => (handed, passed),
            (other, _) => return Err(unexpected(other)),
        };
        let Handed { pid, enforcement, is_warm, has_listener, has_gauge, leftovers, kept, generation } = handed;
        let expected = 2 + usize::from(has_listener);
        if passed.len() < expected {
            without(pid);
            return Err(Error::Setup { step: "take a sandbox over".into(), source: Errno::MFILE });
        }
        let mut passed = passed.into_iter();
        let mut next = || passed.next().ok_or(Error::Protocol("a sandbox without a channel"));
        let (control, pidfd) = (next()?, next()?);
        let listener = if has_listener { Some(next()?.into()) } else { None };
        let gauge = if has_gauge { MemoryGauge::from_descriptors(&mut passed) } else { None };
        let launched = Launched {
            control: Control::new(control),
            pid: Pid::from_raw(pid).ok_or(Error::Protocol("a process without a number"))?,
            pidfd,
            enforcement,
            is_warm,
            listener,
            gauge,
        };
        let kept = kept.map(|(process, streams)| (process, passed.by_ref().take(streams).collect()));
        let mut leftover = || Some([passed.next()?, passed.next()?]);
        let leftovers = (0..leftovers).map_while(|_| leftover()).collect();
        Ok(Adopted { launched, interpreter_streams: kept, background_streams: leftovers, generation })
    }

    fn ask(&self, request: &Request) -> Result<(Reply, Vec<OwnedFd>), Error> {
        self.send(request, &[])?;
        self.answer()
    }

    fn send(&self, request: &Request, passed: &[BorrowedFd<'_>]) -> Result<(), Error> {
        if self.is_out_of_step.get() {
            return Err(Error::LauncherLost);
        }
        self.channel.send(request, passed).map_err(|_| Error::LauncherLost)
    }

    fn answer(&self) -> Result<(Reply, Vec<OwnedFd>), Error> {
        self.answer_within(DEADLINE)
    }

    fn answer_within(&self, patience: Duration) -> Result<(Reply, Vec<OwnedFd>), Error> {
        if self.is_out_of_step.get() {
            return Err(Error::LauncherLost);
        }
        let Ok(Some(answer)) = self.channel.receive_by(Some(Instant::now() + patience)) else {
            self.is_out_of_step.set(true);
            return Err(Error::LauncherLost);
        };
        Ok(answer)
    }
}

fn unexpected(reply: Reply) -> Error {
    match reply {
        Reply::Refused { message, hints } => Error::Refused { message, hints },
        _ => Error::Protocol("an answer to another question"),
    }
}
