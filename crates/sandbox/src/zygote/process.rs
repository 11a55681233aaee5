//! The zygote as its parent sees it: started, waited for, asked for inits, replaced.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use rustix::process::Pid;
use serde::{Deserialize, Serialize};

use super::birth::{Reply, Request};
use super::scratch::Scratch;
use crate::error::Error;
use crate::frame::{Channel, MOST_DESCRIPTORS};
use crate::host;
use crate::init::Plan;
use crate::launch::errno_of;
use crate::sandbox::Process;

/// What a zygote is made of. It is run on the host, so only what its owner trusts goes in here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ZygoteConfig {
    /// The interpreter and its arguments; the numbers of two descriptors are added: its socket, and this crate as a
    /// shared library.
    pub command: Vec<String>,
    pub environment: Vec<(String, String)>,
    /// What it reads on its standard input.
    pub input: String,
}

/// Siblings share their address layout and hash seed, so a zygote does not have too many of them.
const MOST_BIRTHS: u32 = 512;

/// To import numpy, pandas and matplotlib on a slow disk.
const WARM_UP_DEADLINE: Duration = Duration::from_secs(60);

/// A birth takes a millisecond or two.
const BIRTH_DEADLINE: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

/// A zygote. Dropped, it is ended; those it bore live on.
pub(crate) struct Zygote {
    process: Child,
    channel: Channel,
    state: State,
    births: u32,
    /// Where its interpreter may leave files while it warms up, and no longer.
    scratch: Option<Scratch>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    WarmingUp { since: Instant },
    Warm,
    Lost,
}

impl Zygote {
    /// Starts one, which needs some time to become warm.
    pub(crate) fn start(warmth: &ZygoteConfig, library: &[u8]) -> std::io::Result<Self> {
        let (ours, theirs) = Channel::pair()?;
        let library = in_memory(library)?;
        // The two that it inherits; all else is close-on-exec.
        let (socket, library) = (rustix::io::dup(&theirs)?, rustix::io::dup(&library)?);
        let [program, arguments @ ..] = &warmth.command[..] else {
            return Err(std::io::ErrorKind::InvalidInput.into());
        };
        let scratch = Scratch::new()?;
        let process = Command::new(program)
            .args(arguments)
            .args([socket.as_raw_fd().to_string(), library.as_raw_fd().to_string()])
            .env_clear()
            .envs(warmth.environment.iter().map(|(name, value)| (name, value)))
            .envs(["HOME", "TMPDIR"].map(|name| (name, scratch.path())))
            .current_dir(scratch.path())
            .stdin(Stdio::from(in_memory(warmth.input.as_bytes())?))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let state = State::WarmingUp { since: Instant::now() };
        Ok(Self { process, channel: ours, state, births: 0, scratch: Some(scratch) })
    }

    /// Whether it can bear now.
    pub(crate) fn is_warm(&mut self) -> bool {
        if let State::WarmingUp { since } = self.state {
            let mut watched = [PollFd::new(&self.channel, PollFlags::IN)];
            if poll(&mut watched, Some(&Timespec::default())).is_ok_and(|ready| ready > 0) {
                let said = self.channel.receive::<Reply>();
                self.state = if matches!(said, Ok(Some((Reply::Ready, _)))) { State::Warm } else { State::Lost };
                self.scratch = None;
            } else if since.elapsed() > WARM_UP_DEADLINE {
                self.state = State::Lost;
            }
        }
        self.state == State::Warm
    }

    /// Whether another should take its place.
    pub(crate) fn is_spent(&self) -> bool {
        self.births >= MOST_BIRTHS || self.is_lost()
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.state == State::Lost
    }

    /// Has the init of `plan` forked.
    pub(crate) fn bear(
        &mut self,
        plan: &Plan,
        orders: &Channel,
        life: &Channel,
        birth_place: Option<BorrowedFd<'_>>,
    ) -> Result<Process, Error> {
        let (request, passed) = Request::new(plan, [orders, life], birth_place);
        let asked = if passed.len() > MOST_DESCRIPTORS { Err(Errno::MSGSIZE) } else { self.ask(&request, &passed) };
        match asked {
            Ok((Reply::Born { pid }, passed)) => {
                self.births += 1;
                let pid = Pid::from_raw(pid).ok_or(Error::Protocol("a process without a number"))?;
                let pidfd = passed.into_iter().next().ok_or(Error::Protocol("a process without a handle"))?;
                Ok(Process { pid, pidfd })
            }
            Ok((Reply::Failed { errno }, _)) => Err(host::explain_clone(errno_of(errno))),
            Ok((Reply::Ready, _)) | Err(_) => {
                self.state = State::Lost;
                Err(Error::ZygoteLost)
            }
        }
    }

    fn ask(&self, request: &Request<'_>, passed: &[BorrowedFd<'_>]) -> Result<(Reply, Vec<OwnedFd>), Errno> {
        self.channel.send(request, passed)?;
        let mut watched = [PollFd::new(&self.channel, PollFlags::IN)];
        if poll(&mut watched, Some(&BIRTH_DEADLINE))? == 0 {
            return Err(Errno::TIMEDOUT);
        }
        self.channel.receive()?.ok_or(Errno::PIPE)
    }
}

impl Drop for Zygote {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A file that holds these bytes, to be read from its start.
fn in_memory(bytes: &[u8]) -> std::io::Result<OwnedFd> {
    let fd = match rustix::fs::memfd_create("ringfence", MemfdFlags::CLOEXEC | MemfdFlags::EXEC) {
        // Kernels before 6.3 do not know the flag, and need none.
        Err(Errno::INVAL) => rustix::fs::memfd_create("ringfence", MemfdFlags::CLOEXEC)?,
        made => made?,
    };
    let mut rest = bytes;
    while !rest.is_empty() {
        rest = &rest[rustix::io::write(&fd, rest)?..];
    }
    rustix::fs::seek(&fd, rustix::fs::SeekFrom::Start(0))?;
    Ok(fd)
}
