//! The host's handle on a running sandbox. Dropped, it kills every process in it and frees all it had.

use std::fs::File;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, pidfd_send_signal, waitid};

use crate::cgroup::{Cgroup, MemoryGauge};
use crate::control::Control;
use crate::enforcement::Enforcement;
use crate::error::Error;
use crate::frame::{Channel, Order};
use crate::protect::{Hold, NameChange, VolumeWatch};
use crate::watchdog::{LimitBreach, Watchdog};
use ringfence_core::Spec;

/// The host's ends of what the sandbox was given.
#[derive(Debug, Default)]
pub struct Streams {
    pub stdin: Option<OwnedFd>,
    pub stdout: Option<OwnedFd>,
    pub stderr: Option<OwnedFd>,
    /// The controlling side of the command's terminal.
    pub terminal: Option<OwnedFd>,
    /// The listener inside the sandbox's network namespace, for the egress proxy.
    pub listener: Option<TcpListener>,
}

impl Streams {
    /// The descriptors of pipes; a terminal has none.
    pub fn take_pipes(&mut self) -> Option<[OwnedFd; 3]> {
        Some([self.stdin.take()?, self.stdout.take()?, self.stderr.take()?])
    }
}

/// The init. Dropped, it is killed and waited for, so that what is freed after it is no longer in use.
pub(crate) struct Process {
    pub(crate) pid: Pid,
    pub(crate) pidfd: OwnedFd,
}

impl Process {
    fn kill(&self) {
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
    }

    /// Waits until it is gone. A process that hangs in the kernel (a dead network file system) cannot be
    /// waited for: what it holds is then left to the next sweep.
    fn wait(&self) {
        let deadline = Timespec { tv_sec: 30, tv_nsec: 0 };
        loop {
            match poll(&mut [PollFd::new(&self.pidfd, PollFlags::IN)], Some(&deadline)) {
                Err(Errno::INTR) => {}
                Ok(0) | Err(_) => return,
                Ok(_) => break,
            }
        }
        let _ = waitid(WaitId::PidFd(self.pidfd.as_fd()), WaitIdOptions::EXITED);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        self.wait();
    }
}

/// A running sandbox.
pub struct Sandbox {
    // The order of these is the order in which they are freed.
    process: Process,
    cgroup: Option<Cgroup>,
    _holds: Vec<Hold>,
    control: Control,
    life: Channel,
    watchdog: Option<Watchdog>,
    enforcement: Enforcement,
    breached: bool,
}

impl Sandbox {
    pub(crate) fn new(
        process: Process,
        channel: Channel,
        life: Channel,
        cgroup: Option<Cgroup>,
        holds: Vec<Hold>,
        spec: &Spec,
        enforcement: Enforcement,
    ) -> Self {
        let watchdog = (!enforcement.memory_by_cgroup).then(|| Watchdog::new(process.pid, &spec.limits));
        let control = Control::new(channel);
        Self { process, cgroup, _holds: holds, control, life, watchdog, enforcement, breached: false }
    }

    /// Takes a cgroup into its keeping, and gives the files by which the init enters it.
    pub(crate) fn hold(&mut self, cgroup: Cgroup) -> Result<Vec<File>, Error> {
        self.cgroup.insert(cgroup).entrances()
    }

    /// Orders to the init, and what it has to say.
    pub fn control(&self) -> &Control {
        &self.control
    }

    /// Gives it a new owner, who gets the other end of a new channel. What the last owner had started is ended, but
    /// for `keep`.
    pub(crate) fn renew(&mut self, keep: Option<u32>) -> Result<(), Error> {
        let (ours, theirs) = Channel::pair().map_err(Error::setup("make the control channel"))?;
        self.life.send(&Order::Renew { keep }, &[theirs.as_fd()]).map_err(|_| Error::LauncherLost)?;
        self.control = Control::new(ours);
        Ok(())
    }

    /// The descriptors by which another process can control and end it.
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

    /// Whether it was killed from here, for going over its memory limit.
    pub(crate) fn is_breached(&self) -> bool {
        self.breached
    }

    /// What its cgroup counts, where it has one for memory.
    pub(crate) fn gauge(&self) -> Option<MemoryGauge> {
        self.cgroup.as_ref().and_then(Cgroup::gauge)
    }

    /// The init's process id on the host.
    pub fn pid(&self) -> Pid {
        self.process.pid
    }

    /// Removes the cgroups that killed owners have left behind. Not needed for anything else, so it can be
    /// done while the command runs.
    pub fn remove_stale_cgroups(&self) {
        if let Some(cgroup) = &self.cgroup {
            cgroup.sweep_beside();
        }
    }

    /// Whether the limits must be checked from here, because no cgroup keeps the memory limit.
    pub fn needs_limit_checks(&self) -> bool {
        self.watchdog.is_some()
    }

    /// Checks once; on a breach the sandbox has been killed.
    pub fn check_limits(&mut self) -> Option<LimitBreach> {
        let breach = self.watchdog.as_ref()?.check()?;
        // A sandbox that has just ended cannot be seen either, but it has said so.
        if breach == LimitBreach::Unobservable && self.control.has_event() {
            return None;
        }
        self.process.kill();
        self.breached = true;
        Some(breach)
    }

    /// Ends every process and waits until they are gone. Returns how many the kernel killed for memory, and the changes
    /// of protected names from before the placeholders of strict volumes were removed.
    pub fn finish(self, names: Option<VolumeWatch>) -> (u64, Vec<NameChange>) {
        self.process.kill();
        self.process.wait();
        let changes = names.map(|mut names| names.take_changes()).unwrap_or_default();
        (self.cgroup.as_ref().map_or(0, Cgroup::memory_kills), changes)
    }
}

/// Readable when [`Control::next_event`] has something to say.
impl AsFd for Sandbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.control.as_fd()
    }
}
