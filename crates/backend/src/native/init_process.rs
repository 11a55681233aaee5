//! The init of a sandbox, as a process of the host.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use ringfence_sandbox::cgroup::MemoryCounters;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, pidfd_send_signal};
use tokio::net::unix::pipe::Receiver;

/// The PID 1 of a sandbox: when it ends, every process of the sandbox does. Cheap to clone.
#[derive(Clone)]
pub(crate) struct InitProcess {
    pid: Pid,
    pidfd: Arc<OwnedFd>,
    /// None without a memory cgroup.
    memory_counters: Option<Arc<MemoryCounters>>,
}

impl InitProcess {
    pub(super) fn new(pid: Pid, pidfd: OwnedFd, memory_counters: Option<MemoryCounters>) -> Self {
        Self { pid, pidfd: Arc::new(pidfd), memory_counters: memory_counters.map(Arc::new) }
    }

    /// Its number on the host. It belongs to the init only while that lives.
    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    pub(crate) fn memory_counters(&self) -> Option<&MemoryCounters> {
        self.memory_counters.as_deref()
    }

    pub(crate) fn is_alive(&self) -> bool {
        poll(&mut [PollFd::new(&self.pidfd, PollFlags::IN)], Some(&Timespec::default())) == Ok(0)
    }

    pub(crate) fn kill(&self) {
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
    }

    /// Waits for its end. A pidfd is waited for like the reading end of a pipe.
    pub(crate) async fn ended(&self) {
        if let Ok(pidfd) = self.pidfd.try_clone().and_then(Receiver::from_owned_fd_unchecked) {
            let _ = pidfd.readable().await;
        }
    }
}
