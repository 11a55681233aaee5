//! A zygote process as its parent sees it.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use rustix::process::Pid;
use serde::{Deserialize, Serialize};

use super::protocol::{ForkRequest, ZygoteReply};
use super::scratch_directory::ScratchDirectory;
use crate::error::Error;
use crate::host;
use crate::init::Plan;
use crate::protocol::{Channel, MAX_DESCRIPTORS, errno_from_wire};
use crate::sandbox::InitProcess;

/// The program of a zygote. It runs on the host without isolation, so every part must be trusted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ZygoteConfig {
    /// The interpreter and its arguments. Two arguments are added, the numbers of inherited descriptors: the zygote's
    /// socket, and this crate as a shared library.
    pub command: Vec<String>,
    pub environment: Vec<(String, String)>,
    /// The content of the standard input.
    pub input: String,
}

/// Maximum number of forks of one zygote. All forks of a zygote share their address layout and hash seed.
const MAX_FORKS: u32 = 512;

/// Maximum time to import numpy, pandas and matplotlib from a slow disk.
const WARM_UP_TIMEOUT: Duration = Duration::from_secs(60);

/// Maximum time of a fork, which takes a millisecond or two.
const FORK_TIMEOUT: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

/// A zygote process. Killed on drop; its forks continue to run.
pub(crate) struct Zygote {
    process: Child,
    channel: Channel,
    state: State,
    forks: u32,
    /// The interpreter's home and temporary directory; only while it warms up.
    scratch: Option<ScratchDirectory>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    WarmingUp { since: Instant },
    Warm,
    Lost,
}

impl Zygote {
    /// Starts a zygote, which then warms up for some time. `library` is this crate as a shared library.
    pub(crate) fn start(config: &ZygoteConfig, library: &[u8]) -> std::io::Result<Self> {
        let (ours, theirs) = Channel::pair()?;
        let library = memory_file(library)?;
        // Duplicated without close-on-exec: only these two descriptors are inherited.
        let (socket, library) = (rustix::io::dup(&theirs)?, rustix::io::dup(&library)?);
        let [program, arguments @ ..] = &config.command[..] else {
            return Err(std::io::ErrorKind::InvalidInput.into());
        };
        let scratch = ScratchDirectory::new()?;
        let process = Command::new(program)
            .args(arguments)
            .args([socket.as_raw_fd().to_string(), library.as_raw_fd().to_string()])
            .env_clear()
            .envs(config.environment.iter().map(|(name, value)| (name, value)))
            .envs(["HOME", "TMPDIR"].map(|name| (name, scratch.path())))
            .current_dir(scratch.path())
            .stdin(Stdio::from(memory_file(config.input.as_bytes())?))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let state = State::WarmingUp { since: Instant::now() };
        Ok(Self { process, channel: ours, state, forks: 0, scratch: Some(scratch) })
    }

    /// Whether the zygote can fork inits now.
    pub(crate) fn is_warm(&mut self) -> bool {
        if let State::WarmingUp { since } = self.state {
            let mut watched = [PollFd::new(&self.channel, PollFlags::IN)];
            if poll(&mut watched, Some(&Timespec::default())).is_ok_and(|ready| ready > 0) {
                let reply = self.channel.receive::<ZygoteReply>();
                self.state = if matches!(reply, Ok(Some((ZygoteReply::Ready, _)))) { State::Warm } else { State::Lost };
                self.scratch = None;
            } else if since.elapsed() > WARM_UP_TIMEOUT {
                self.state = State::Lost;
            }
        }
        self.state == State::Warm
    }

    /// Whether the zygote must be replaced: it is lost, or has forked too often.
    pub(crate) fn needs_replacement(&self) -> bool {
        self.forks >= MAX_FORKS || self.is_lost()
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.state == State::Lost
    }

    /// Forks an init that executes `plan`.
    pub(crate) fn fork_init(
        &mut self,
        plan: &Plan,
        owner: &Channel,
        creator: &Channel,
        cgroup: Option<BorrowedFd<'_>>,
    ) -> Result<InitProcess, Error> {
        let (request, passed) = ForkRequest::new(plan, [owner, creator], cgroup);
        let reply = if passed.len() > MAX_DESCRIPTORS { Err(Errno::MSGSIZE) } else { self.call(&request, &passed) };
        match reply {
            Ok((ZygoteReply::Forked { pid }, passed)) => {
                self.forks += 1;
                let pid = Pid::from_raw(pid).ok_or(Error::Protocol("the zygote sent an invalid process id"))?;
                let pidfd = passed.into_iter().next().ok_or(Error::Protocol("the zygote sent no pidfd"))?;
                Ok(InitProcess { pid, pidfd })
            }
            Ok((ZygoteReply::Failed { errno }, _)) => Err(host::explain_clone(errno_from_wire(errno))),
            Ok((ZygoteReply::Ready, _)) | Err(_) => {
                self.state = State::Lost;
                Err(Error::ZygoteLost)
            }
        }
    }

    fn call(&self, request: &ForkRequest<'_>, passed: &[BorrowedFd<'_>]) -> Result<(ZygoteReply, Vec<OwnedFd>), Errno> {
        self.channel.send(request, passed)?;
        let mut watched = [PollFd::new(&self.channel, PollFlags::IN)];
        if poll(&mut watched, Some(&FORK_TIMEOUT))? == 0 {
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

/// Creates an anonymous file with this content, positioned at its start.
fn memory_file(content: &[u8]) -> std::io::Result<OwnedFd> {
    let fd = match rustix::fs::memfd_create("ringfence", MemfdFlags::CLOEXEC | MemfdFlags::EXEC) {
        // Kernels before 6.3 do not know the flag, and allow execution without it.
        Err(Errno::INVAL) => rustix::fs::memfd_create("ringfence", MemfdFlags::CLOEXEC)?,
        created => created?,
    };
    let mut rest = content;
    while !rest.is_empty() {
        rest = &rest[rustix::io::write(&fd, rest)?..];
    }
    rustix::fs::seek(&fd, rustix::fs::SeekFrom::Start(0))?;
    Ok(fd)
}
