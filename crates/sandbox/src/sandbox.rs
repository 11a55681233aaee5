//! The host's handle of a running sandbox. On drop it kills every process of the sandbox and frees its resources.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, pidfd_send_signal, waitid};

use crate::cgroup::{Cgroup, MemoryCounters};
use crate::control::Control;
use crate::enforcement::Enforcement;
use crate::error::Error;
use crate::memory_watchdog::{LimitBreach, MemoryWatchdog};
use crate::protocol::{Channel, InitRequest};
use crate::volumes::{NameChange, Placeholders, VolumeWatch};
use ringfence_core::{EgressSockets, Spec};

/// The host's ends of the command's streams, and the sockets for egress.
#[derive(Debug, Default)]
pub struct Streams {
    pub stdin: Option<OwnedFd>,
    pub stdout: Option<OwnedFd>,
    pub stderr: Option<OwnedFd>,
    /// The controlling side of the command's terminal.
    pub terminal: Option<OwnedFd>,
    /// The sockets inside the sandbox's network namespace, if the spec has egress.
    pub egress: Option<EgressSockets>,
}

impl Streams {
    /// Takes the three pipes; `None` if the command has a terminal.
    pub fn take_pipes(&mut self) -> Option<[OwnedFd; 3]> {
        Some([self.stdin.take()?, self.stdout.take()?, self.stderr.take()?])
    }
}

/// The init. On drop it is killed and waited for, so that resources that are freed afterwards are no longer in use.
pub(crate) struct InitProcess {
    pub(crate) pid: Pid,
    pub(crate) pidfd: OwnedFd,
}

impl InitProcess {
    fn kill(&self) {
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
    }

    /// Waits until the process has ended, up to a timeout: a process that blocks in the kernel (on a dead network file
    /// system) may not end. Later starts remove what it leaves.
    fn wait(&self) {
        const END_TIMEOUT: Timespec = Timespec { tv_sec: 30, tv_nsec: 0 };
        loop {
            match poll(&mut [PollFd::new(&self.pidfd, PollFlags::IN)], Some(&END_TIMEOUT)) {
                Err(Errno::INTR) => {}
                Ok(0) | Err(_) => return,
                Ok(_) => break,
            }
        }
        let _ = waitid(WaitId::PidFd(self.pidfd.as_fd()), WaitIdOptions::EXITED);
    }
}

impl Drop for InitProcess {
    fn drop(&mut self) {
        self.kill();
        self.wait();
    }
}

/// A running sandbox.
pub struct Sandbox {
    // Dropped in this order.
    process: InitProcess,
    cgroup: Option<Cgroup>,
    _placeholders: Vec<Placeholders>,
    control: Control,
    creator_channel: Channel,
    watchdog: Option<MemoryWatchdog>,
    enforcement: Enforcement,
    has_exceeded_memory: bool,
}

impl Sandbox {
    pub(crate) fn new(
        process: InitProcess,
        owner_channel: Channel,
        creator_channel: Channel,
        cgroup: Option<Cgroup>,
        placeholders: Vec<Placeholders>,
        spec: &Spec,
        enforcement: Enforcement,
    ) -> Self {
        let watchdog = (!enforcement.memory_by_cgroup).then(|| MemoryWatchdog::new(process.pid, &spec.limits));
        Self {
            process,
            cgroup,
            _placeholders: placeholders,
            control: Control::new(owner_channel),
            creator_channel,
            watchdog,
            enforcement,
            has_exceeded_memory: false,
        }
    }

    /// Takes ownership of a v1 cgroup, and returns the files through which the init joins it.
    pub(crate) fn add_cgroup(&mut self, cgroup: Cgroup) -> Result<Vec<File>, Error> {
        self.cgroup.insert(cgroup).v1_task_files()
    }

    /// The control channel to the init.
    pub fn control(&self) -> &Control {
        &self.control
    }

    /// Prepares the sandbox for a new owner, who gets a new control channel. The processes of the previous owner are
    /// killed, except `keep`.
    pub(crate) fn replace_owner(&mut self, keep: Option<u32>) -> Result<(), Error> {
        let (ours, theirs) = Channel::pair().map_err(Error::setup("create the control channel"))?;
        self.creator_channel
            .send(&InitRequest::ReplaceOwner { keep }, &[theirs.as_fd()])
            .map_err(|_| Error::SandboxLost)?;
        self.control = Control::new(ours);
        Ok(())
    }

    /// The control channel and the pidfd, with which another process can control and end the sandbox.
    pub(crate) fn descriptors(&self) -> (BorrowedFd<'_>, BorrowedFd<'_>) {
        (self.control.as_fd(), self.process.pidfd.as_fd())
    }

    pub(crate) fn enforcement(&self) -> Enforcement {
        self.enforcement
    }

    pub(crate) fn has_ended(&self) -> bool {
        let mut watched = [PollFd::new(&self.process.pidfd, PollFlags::IN)];
        poll(&mut watched, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }

    /// Whether [`Self::check_limits`] has killed the sandbox.
    pub(crate) fn has_exceeded_memory(&self) -> bool {
        self.has_exceeded_memory
    }

    /// Opens the counters of the memory cgroup, if the sandbox has one.
    pub(crate) fn memory_counters(&self) -> Option<MemoryCounters> {
        self.cgroup.as_ref().and_then(Cgroup::memory_counters)
    }

    /// The init's process id on the host.
    pub fn pid(&self) -> Pid {
        self.process.pid
    }

    /// Removes the cgroups that killed processes have left. Nothing else depends on this, so it can be done while the
    /// command runs.
    pub fn remove_stale_cgroups(&self) {
        if let Some(cgroup) = &self.cgroup {
            cgroup.remove_stale_siblings();
        }
    }

    /// Whether the owner must call [`Self::check_limits`] regularly, because no cgroup enforces the memory limit.
    pub fn needs_limit_checks(&self) -> bool {
        self.watchdog.is_some()
    }

    /// Checks the memory limit once. If it is exceeded, kills the sandbox.
    pub fn check_limits(&mut self) -> Option<LimitBreach> {
        let breach = self.watchdog.as_ref()?.check()?;
        // A sandbox that has just ended is not observable either, but then it has sent an event.
        if breach == LimitBreach::Unobservable && self.control.has_event() {
            return None;
        }
        self.process.kill();
        self.has_exceeded_memory = true;
        Some(breach)
    }

    /// Kills every process and waits until they have ended. Returns the number of processes that the kernel killed for
    /// memory, and the changes of protected names, checked before the placeholders of strict volumes are removed.
    pub fn finish(self, names: Option<VolumeWatch>) -> (u64, Vec<NameChange>) {
        self.process.kill();
        self.process.wait();
        let changes = names.map(|mut names| names.take_changes()).unwrap_or_default();
        (self.cgroup.as_ref().map_or(0, Cgroup::memory_kills), changes)
    }
}

/// Readable when [`Control::next_event`] would return immediately.
impl AsFd for Sandbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.control.as_fd()
    }
}
