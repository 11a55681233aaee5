//! Starts sandboxes on behalf of a process that has threads and so cannot do it itself.
//!
//! The launcher is a single-threaded process at the other end of a socket. It makes a sandbox for every
//! request, hands over the channel to its init, and keeps what must outlive every owner of that channel:
//! the process to reap, the cgroup, the placeholders. When its client goes away, it ends them all.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal};
use serde::{Deserialize, Serialize};

use crate::control::Control;
use crate::enforcement::Enforcement;
use crate::error::Error;
use crate::frame::Channel;
use crate::launch::{Stdio, start};
use crate::sandbox::Sandbox;
use crate::spec::Spec;
use crate::sys::SignalSet;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
enum Request {
    /// Make a sandbox without a command of its own.
    Launch { spec: Box<Spec> },
    /// How it stands with the one whose init has this process id.
    Examine { pid: i32 },
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
enum Reply {
    /// Carries the channel to the init, the init's pidfd, and the proxy's listener, where the spec asks for one.
    Launched {
        pid: i32,
        enforcement: Enforcement,
    },
    Refused {
        message: String,
        hints: Vec<String>,
    },
    Examined {
        memory_kills: u64,
        memory_bytes: u64,
    },
}

/// What a sandbox's cgroup has counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Examined {
    /// Processes that were killed for want of memory.
    pub memory_kills: u64,
    pub memory_bytes: u64,
}

/// The launcher's side: serves requests until the client goes away.
pub fn serve(socket: OwnedFd) -> Result<(), Error> {
    let channel = Channel::from(socket);
    let children = SignalSet::new(&[Signal::CHILD]).block_and_watch().map_err(Error::setup("watch for children"))?;
    let mut sandboxes = Sandboxes::default();
    loop {
        let mut watched = [PollFd::new(&channel, PollFlags::IN), PollFd::new(&children, PollFlags::IN)];
        let timeout = sandboxes.watch();
        match poll(&mut watched, timeout.as_ref()) {
            Err(Errno::INTR) => continue,
            result => result.map_err(Error::setup("wait for requests"))?,
        };
        let [requested, ended] = watched.map(|fd| !fd.revents().is_empty());
        if ended {
            let mut signals = [0; 1024];
            let _ = rustix::io::read(&children, &mut signals);
            sandboxes.reap();
        }
        if requested {
            match channel.receive::<Request>() {
                Ok(Some((Request::Launch { spec }, _))) => launch(&channel, &spec, &mut sandboxes)?,
                Ok(Some((Request::Examine { pid }, _))) => {
                    let Examined { memory_kills, memory_bytes } = sandboxes.examine(pid);
                    reply(&channel, &Reply::Examined { memory_kills, memory_bytes }, &[])?;
                }
                Ok(None) | Err(_) => return Ok(()),
            }
        }
    }
}

/// How often sandboxes without a memory cgroup are looked at, at most.
const WATCH_INTERVAL: Duration = Duration::from_millis(25);

/// How many times as long as a look takes it rests before the next.
const WATCH_REST: u32 = 20;

/// Ends that are remembered for whoever asks about them afterwards.
const REMEMBERED: usize = 64;

#[derive(Default)]
struct Sandboxes {
    living: BTreeMap<i32, Sandbox>,
    ended: VecDeque<(i32, Examined)>,
    watch_at: Option<Instant>,
}

impl Sandboxes {
    /// Looks at those that need it when it is time, and gives how long to wait for the next time.
    fn watch(&mut self) -> Option<Timespec> {
        if !self.living.values().any(Sandbox::needs_watching) {
            self.watch_at = None;
            return None;
        }
        let now = Instant::now();
        if self.watch_at.is_none_or(|at| now >= at) {
            for sandbox in self.living.values_mut() {
                // One that went over its limit is killed by this; its end comes as any other's.
                let _ = sandbox.watch();
            }
            self.watch_at = Some(Instant::now() + WATCH_INTERVAL.max(now.elapsed() * WATCH_REST));
        }
        let rest = self.watch_at.map_or(WATCH_INTERVAL, |at| at.saturating_duration_since(Instant::now()));
        Timespec::try_from(rest).ok()
    }

    /// Frees what the ones that have ended had.
    fn reap(&mut self) {
        let ended: Vec<i32> =
            self.living.iter().filter(|(_, sandbox)| sandbox.has_ended()).map(|(pid, _)| *pid).collect();
        for pid in ended {
            let examined = self.living.remove(&pid).map(|sandbox| sandbox.examine()).unwrap_or_default();
            self.ended.push_back((pid, examined));
        }
        while self.ended.len() > REMEMBERED {
            self.ended.pop_front();
        }
    }

    fn examine(&self, pid: i32) -> Examined {
        let ended = || self.ended.iter().rev().find_map(|(ended, examined)| (*ended == pid).then_some(*examined));
        self.living.get(&pid).map(Sandbox::examine).or_else(ended).unwrap_or_default()
    }
}

fn launch(channel: &Channel, spec: &Spec, sandboxes: &mut Sandboxes) -> Result<(), Error> {
    match start(spec, Stdio::Pipes) {
        Ok((sandbox, streams)) => {
            let pid = sandbox.pid().as_raw_nonzero().get();
            let (control, pidfd) = sandbox.descriptors();
            let mut passed = vec![control, pidfd];
            passed.extend(streams.listener.as_ref().map(AsFd::as_fd));
            reply(channel, &Reply::Launched { pid, enforcement: sandbox.enforcement() }, &passed)?;
            sandbox.sweep();
            sandboxes.living.insert(pid, sandbox);
            Ok(())
        }
        Err(error) => {
            let mut message = error.to_string();
            let mut source = std::error::Error::source(&error);
            while let Some(cause) = source {
                message = format!("{message}: {cause}");
                source = cause.source();
            }
            reply(channel, &Reply::Refused { message, hints: error.hints() }, &[])
        }
    }
}

fn reply(channel: &Channel, reply: &Reply, passed: &[BorrowedFd<'_>]) -> Result<(), Error> {
    channel.send(reply, passed).map_err(|_| Error::Lost)
}

/// The client's side. Dropped, it ends the launcher and all its sandboxes.
pub struct Launcher(Channel);

/// A sandbox that the launcher has made.
pub struct Launched {
    pub control: Control,
    pub pid: Pid,
    /// Kills the sandbox, and is readable once it has ended.
    pub pidfd: OwnedFd,
    pub enforcement: Enforcement,
    /// The listener inside the sandbox's network namespace, for the egress proxy.
    pub listener: Option<std::net::TcpListener>,
}

impl Launcher {
    /// Takes one end of the socket whose other end [`serve`] has.
    pub fn new(socket: OwnedFd) -> Self {
        Self(Channel::from(socket))
    }

    /// Makes a sandbox without a command of its own. Blocks until it stands.
    pub fn launch(&self, spec: &Spec) -> Result<Launched, Error> {
        let (reply, passed) = self.ask(&Request::Launch { spec: Box::new(spec.clone()) })?;
        match reply {
            Reply::Launched { pid, enforcement } => {
                let mut passed = passed.into_iter();
                let (control, pidfd) =
                    passed.next().zip(passed.next()).ok_or(Error::Protocol("a sandbox without a channel"))?;
                Ok(Launched {
                    control: Control::new(control),
                    pid: Pid::from_raw(pid).ok_or(Error::Protocol("a process without a number"))?,
                    pidfd,
                    enforcement,
                    listener: passed.next().map(Into::into),
                })
            }
            Reply::Refused { message, hints } => Err(Error::Refused { message, hints }),
            Reply::Examined { .. } => Err(Error::Protocol("an answer to another question")),
        }
    }

    /// What the cgroup of a sandbox has counted; nothing where it has none or is gone.
    pub fn examine(&self, pid: Pid) -> Result<Examined, Error> {
        match self.ask(&Request::Examine { pid: pid.as_raw_nonzero().get() })?.0 {
            Reply::Examined { memory_kills, memory_bytes } => Ok(Examined { memory_kills, memory_bytes }),
            _ => Err(Error::Protocol("an answer to another question")),
        }
    }

    fn ask(&self, request: &Request) -> Result<(Reply, Vec<OwnedFd>), Error> {
        self.0.send(request, &[]).map_err(|_| Error::Lost)?;
        match self.0.receive() {
            Ok(Some(answer)) => Ok(answer),
            _ => Err(Error::Lost),
        }
    }
}
