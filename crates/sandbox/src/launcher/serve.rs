//! The launcher's side.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::Signal;

use super::sandboxes::Sandboxes;
use super::{LauncherConfig, InitialProcess, PROTOCOL, Reply, Request, ZygoteStatus, short_path};
use crate::error::Error;
use crate::frame::Channel;
use crate::launch::{Begun, Birth, Stdio, begin};
use crate::sys;
use crate::sys::SignalSet;
use crate::zygote::{ZygoteConfig, Zygote};
use ringfence_core::Spec;

/// Serves requests until the client says farewell, or the lease has run out.
///
/// `library` is this crate as a shared object, for zygotes.
pub fn serve(socket: OwnedFd, library: &'static [u8]) -> Result<(), Error> {
    let children = SignalSet::new(&[Signal::CHILD]).block_to_signalfd().map_err(Error::setup("watch for children"))?;
    // Ctrl-C in the founder's terminal is the founder's to act on.
    let _ = rustix::process::setsid();
    sys::heed_ignored();
    let mut launcher = Launcher {
        client: Some(Channel::from(socket)),
        door: None,
        lease: Duration::ZERO,
        alone_since: Instant::now(),
        sandboxes: Sandboxes::default(),
        launches: VecDeque::new(),
        swept_at: None,
        nursery: Nursery { warmth: None, library, current: None, next: None, failures: 0, retry_at: None },
    };
    while launcher.turn(&children)? == Turn::GoOn {}
    Ok(())
}

#[derive(PartialEq, Eq)]
enum Turn {
    GoOn,
    End,
}

struct Launcher {
    client: Option<Channel>,
    door: Option<Door>,
    lease: Duration,
    /// Since when there is no client.
    alone_since: Instant,
    sandboxes: Sandboxes,
    /// Sandboxes whose inits build their walls, in the order in which they were asked for.
    launches: VecDeque<Launching>,
    swept_at: Option<Instant>,
    nursery: Nursery,
}

/// Inits that build their walls side by side.
const LAUNCHES_AT_ONCE: usize = 3;

/// Other launchers are seldom killed, and what they leave costs little.
const BETWEEN_SWEEPS: Duration = Duration::from_secs(60);

struct Launching {
    spec: Box<Spec>,
    begun: Result<Begun, Error>,
    is_warm: bool,
    /// The process that it starts with, and the streams of it that are kept.
    first: Option<(u32, Vec<OwnedFd>)>,
}

impl Launcher {
    fn turn(&mut self, children: &OwnedFd) -> Result<Turn, Error> {
        let mut timeout = self.sandboxes.watch();
        if self.client.is_none() {
            let left = self.lease.saturating_sub(self.alone_since.elapsed());
            if left.is_zero() || self.door.is_none() || self.sandboxes.is_empty() {
                return Ok(Turn::End);
            }
            timeout = Some(timeout.map_or(left, |timeout| timeout.min(left)));
        }
        let mut watched = vec![PollFd::new(children, PollFlags::IN)];
        watched.extend(self.client.as_ref().map(|client| PollFd::new(client, PollFlags::IN)));
        watched.extend(self.door.as_ref().map(|door| PollFd::new(&door.listener, PollFlags::IN)));
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        match poll(&mut watched, timeout.as_ref()) {
            Err(Errno::INTR) => return Ok(Turn::GoOn),
            result => result.map_err(Error::setup("wait for requests"))?,
        };
        let mut ready = watched.iter().map(PollFd::revents).collect::<Vec<_>>().into_iter();
        if ready.next().is_some_and(|events| !events.is_empty()) {
            let mut signals = [0; 1024];
            let _ = rustix::io::read(children, &mut signals);
            self.sandboxes.reap();
        }
        let events = self.client.as_ref().and_then(|_| ready.next()).unwrap_or(PollFlags::empty());
        // Before the door is opened: whoever knocks may come in the place of a client that has just died, whatever
        // that had still asked for. A farewell is heard all the same.
        let turn = if events.is_empty() { Turn::GoOn } else { self.attend()? };
        if events.contains(PollFlags::HUP) && self.client.take().is_some() {
            // Nobody waits for them any more.
            self.launches.clear();
            self.alone_since = Instant::now();
        }
        if turn == Turn::GoOn && self.door.is_some() && ready.next().is_some_and(|events| !events.is_empty()) {
            self.open_door();
        }
        Ok(turn)
    }

    /// Lets one client in at a time; whoever else knocks finds it closed again. Who has left already is not heard: it
    /// would only put off the end of the lease.
    fn open_door(&mut self) {
        let Some(Ok((stream, _))) = self.door.as_ref().map(|door| door.listener.accept()) else { return };
        let mut knocking = [PollFd::new(&stream, PollFlags::empty())];
        if poll(&mut knocking, Some(&Timespec::default())) != Ok(0) {
            return;
        }
        let peer = rustix::net::sockopt::socket_peercred(&stream);
        let own = rustix::process::geteuid();
        let is_ours = peer.is_ok_and(|peer| peer.uid == own || peer.uid.is_root());
        if self.client.is_none() && is_ours && stream.set_nonblocking(false).is_ok() {
            self.client = Some(Channel::from(OwnedFd::from(stream)));
        }
    }

    fn attend(&mut self) -> Result<Turn, Error> {
        let Some(client) = &self.client else { return Ok(Turn::GoOn) };
        let Ok(Some((request, passed))) = client.receive::<Request>() else {
            // Nobody waits for them any more.
            self.launches.clear();
            self.client = None;
            self.alone_since = Instant::now();
            return Ok(Turn::GoOn);
        };
        let answered = match request {
            Request::Launch { spec, warm, first } => {
                let launching = self.nursery.begin(spec, warm, first, passed);
                self.launches.push_back(launching);
                self.finish_launches()
            }
            // Answers have the order of the requests.
            request => self.finish_all_launches().and_then(|()| self.answer(request, passed)),
        };
        // A client that cannot be answered is gone, and is found to be so at its next turn.
        match answered {
            Ok(turn) => Ok(turn),
            Err(Error::LauncherLost) => Ok(Turn::GoOn),
            Err(error) => Err(error),
        }
    }

    /// Waits for the oldest ones, unless another can be begun meanwhile.
    fn finish_launches(&mut self) -> Result<Turn, Error> {
        while !self.launches.is_empty() {
            let Some(client) = &self.client else { return Ok(Turn::GoOn) };
            let mut watched = [PollFd::new(client, PollFlags::IN)];
            let has_more = poll(&mut watched, Some(&Timespec::default())).is_ok_and(|ready| ready > 0);
            if has_more && self.launches.len() < LAUNCHES_AT_ONCE {
                break;
            }
            self.finish_oldest_launch()?;
        }
        Ok(Turn::GoOn)
    }

    fn finish_all_launches(&mut self) -> Result<(), Error> {
        while !self.launches.is_empty() {
            self.finish_oldest_launch()?;
        }
        Ok(())
    }

    fn finish_oldest_launch(&mut self) -> Result<(), Error> {
        let Some(Launching { spec, begun, is_warm, first }) = self.launches.pop_front() else { return Ok(()) };
        let Some(client) = &self.client else { return Ok(()) };
        let (sandbox, streams) = match begun.and_then(|begun| begun.finish(&spec)) {
            Ok(started) => started,
            Err(error) => return refuse(client, &error),
        };
        let pid = sandbox.pid().as_raw_nonzero().get();
        // For want of descriptors, say: those that live go on.
        let (handed, passed) = match self.sandboxes.admit(sandbox, is_warm, streams.listener.map(Into::into)) {
            Ok(admitted) => admitted,
            Err(error) => return refuse(client, &error),
        };
        if let Some((process, streams)) = first {
            self.sandboxes.keep(pid, process, streams);
        }
        let passed: Vec<BorrowedFd<'_>> = passed.iter().map(AsFd::as_fd).collect();
        reply(client, &Reply::Handed(handed), &passed)?;
        if self.swept_at.is_none_or(|at| at.elapsed() > BETWEEN_SWEEPS) {
            self.sandboxes.sweep(pid);
            self.swept_at = Some(Instant::now());
        }
        Ok(())
    }

    fn answer(&mut self, request: Request, passed: Vec<OwnedFd>) -> Result<Turn, Error> {
        let Some(client) = &self.client else { return Ok(Turn::GoOn) };
        let answered = match request {
            Request::End => return Ok(Turn::End),
            Request::Begin(charter) => self.begin(charter),
            Request::Adopt { protocol, .. } if protocol != PROTOCOL => {
                refuse(client, &Error::Protocol("of another version"))
            }
            Request::Adopt { lease, .. } => {
                let told = reply(client, &Reply::Adopted { sandboxes: self.sandboxes.pids() }, &[]);
                if told.is_ok() {
                    self.lease = lease;
                }
                told
            }
            Request::WarmUp => reply(client, &Reply::Warmth(self.nursery.warm_up()), &[]),
            // Begun as they come.
            Request::Launch { .. } => Ok(()),
            Request::Keep { pid, process } => {
                self.sandboxes.keep(pid, process, passed);
                reply(client, &Reply::Done, &[])
            }
            Request::KeepLeftover { pid } => {
                self.sandboxes.keep_leftover(pid, passed);
                reply(client, &Reply::Done, &[])
            }
            Request::Take { pid } => match self.sandboxes.take(pid) {
                Ok((handed, passed)) => {
                    let passed: Vec<BorrowedFd<'_>> = passed.iter().map(AsFd::as_fd).collect();
                    reply(client, &Reply::Handed(handed), &passed)
                }
                Err(error) => refuse(client, &error),
            },
            Request::Discard { pid } => {
                self.sandboxes.discard(pid);
                Ok(())
            }
            Request::Examine { pid } => {
                reply(client, &Reply::Examined { is_breached: self.sandboxes.is_breached(pid) }, &[])
            }
        };
        answered.map(|()| Turn::GoOn)
    }

    fn begin(&mut self, charter: LauncherConfig) -> Result<(), Error> {
        let Some(client) = &self.client else { return Ok(()) };
        self.lease = charter.lease;
        self.nursery.warmth = charter.zygote;
        match charter.listen.map(Door::open).transpose() {
            Ok(door) => {
                self.door = door;
                reply(client, &Reply::Done, &[])
            }
            Err(error) => refuse(client, &error),
        }
    }
}

/// The socket by which a next client comes in.
struct Door {
    listener: UnixListener,
    path: PathBuf,
}

impl Door {
    fn open(path: PathBuf) -> Result<Self, Error> {
        let step = || format!("listen on {}", path.display());
        let failed = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
        // It has its name only when it listens: whoever finds one that does not takes it for abandoned.
        let bound = short_path(&path).and_then(|(_directory, short)| {
            let unnamed = short.with_extension("new");
            let listener = UnixListener::bind(&unnamed)?;
            std::fs::rename(unnamed, short).map(|()| listener)
        });
        let listener = bound.map_err(failed).map_err(Error::setup(step()))?;
        listener.set_nonblocking(true).map_err(failed).map_err(Error::setup(step()))?;
        Ok(Self { listener, path })
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The zygote, and the next while it warms up.
struct Nursery {
    warmth: Option<ZygoteConfig>,
    library: &'static [u8],
    current: Option<Zygote>,
    next: Option<Zygote>,
    failures: u32,
    retry_at: Option<Instant>,
}

impl Nursery {
    /// Sees to it that there is a zygote, and tells how it stands.
    fn warm_up(&mut self) -> ZygoteStatus {
        if self.next.as_mut().is_some_and(Zygote::is_warm) {
            self.current = self.next.take();
            self.failures = 0;
        }
        if self.next.as_ref().is_some_and(Zygote::is_lost) {
            self.next = None;
            self.failures += 1;
            // The first may have been killed; whatever fails again will mostly go on failing.
            let pause = if self.failures == 1 { 0 } else { 1 << self.failures.min(8) };
            self.retry_at = Some(Instant::now() + Duration::from_secs(pause));
        }
        let has_good = self.current.as_ref().is_some_and(|zygote| !zygote.is_spent());
        if !has_good && self.next.is_none() && self.retry_at.is_none_or(|at| Instant::now() >= at) {
            self.next = self.warmth.as_ref().and_then(|warmth| Zygote::start(warmth, self.library).ok());
        }
        match (self.current.as_mut().is_some_and(Zygote::is_warm), &self.next) {
            (true, _) => ZygoteStatus::Warm,
            (false, Some(_)) => ZygoteStatus::WarmingUp,
            (false, None) => ZygoteStatus::Unavailable,
        }
    }

    /// Begins a sandbox, warm where that is wanted and possible.
    fn begin(&mut self, spec: Box<Spec>, warm: bool, first: Option<InitialProcess>, mut passed: Vec<OwnedFd>) -> Launching {
        let kept = passed.split_off(InitialProcess::DESCRIPTORS.min(passed.len()));
        let mut is_warm = warm && self.warm_up() == ZygoteStatus::Warm;
        let start =
            |birth: &mut Birth<'_>| begin(&spec, Stdio::Pipes, birth, first.as_ref().map(|first| (first, &*passed)));
        let mut begun = match self.current.as_mut().filter(|_| is_warm) {
            Some(zygote) => start(&mut Birth::Zygote(zygote)),
            None => Err(Error::ZygoteLost),
        };
        if matches!(begun, Err(Error::ZygoteLost)) {
            is_warm = false;
            begun = start(&mut Birth::Clone);
        }
        // What was passed is the process's now; were it held here too, its end would never be seen.
        Launching { spec, begun, is_warm, first: first.map(|first| (first.process, kept)) }
    }
}

fn refuse(client: &Channel, error: &Error) -> Result<(), Error> {
    let mut message = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        message = format!("{message}: {cause}");
        source = cause.source();
    }
    reply(client, &Reply::Refused { message, hints: error.hints() }, &[])
}

fn reply(channel: &Channel, reply: &Reply, passed: &[BorrowedFd<'_>]) -> Result<(), Error> {
    channel.send(reply, passed).map_err(|_| Error::LauncherLost)
}
