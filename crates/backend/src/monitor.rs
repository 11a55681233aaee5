//! Watches, measures and kills an instance from outside, without requests to its init.

use std::time::Duration;

use ringfence_sandbox::cgroup::MemoryCounters;
use ringfence_sandbox::usage::{self, MemoryCounting};

use crate::native::InitProcess;

/// Maximum time that the Linux kernel takes to end all processes of an instance and free their memory.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// Watches and kills one instance. Cheap to clone; does not prolong the life of the instance.
#[derive(Clone)]
pub(crate) enum Monitor {
    Native(InitProcess),
}

impl Monitor {
    /// Whether the instance has not ended.
    pub(crate) fn is_alive(&self) -> bool {
        let Self::Native(init) = self;
        init.is_alive()
    }

    /// Kills every process of the instance, without waiting for their end.
    pub(crate) fn kill(&self) {
        let Self::Native(init) = self;
        init.kill();
    }

    /// Whether a cgroup counts the memory.
    pub(crate) fn counts_memory(&self) -> bool {
        let Self::Native(init) = self;
        init.memory_counters().is_some()
    }

    /// The memory that a cgroup counts. None without a memory cgroup.
    pub(crate) fn memory_bytes(&self) -> Option<u64> {
        let Self::Native(init) = self;
        init.memory_counters().map(MemoryCounters::bytes)
    }

    /// The number of processes that were killed because the memory limit was exceeded.
    pub(crate) fn memory_kills(&self) -> u64 {
        let Self::Native(init) = self;
        init.memory_counters().map_or(0, MemoryCounters::kills)
    }

    /// Measures the processes of the instance. None if it has ended. Blocks.
    pub(crate) fn measure(&self, max_tasks: u32, memory: MemoryCounting) -> Option<usage::Usage> {
        let Self::Native(init) = self;
        // The init is checked afterwards: after its end, another process could have had its pid.
        usage::measure(init.pid(), max_tasks, memory).filter(|_| init.is_alive())
    }

    async fn wait_for_end(&self) {
        let Self::Native(init) = self;
        let _ = tokio::time::timeout(END_TIMEOUT, init.ended()).await;
    }
}

/// Kills an instance while another task uses it.
pub struct KillHandle(Monitor);

impl KillHandle {
    pub(crate) fn new(monitor: Monitor) -> Self {
        Self(monitor)
    }

    /// Kills every process of the instance, without waiting for their end.
    pub fn kill(&self) {
        self.0.kill();
    }
}

/// Waits for the end of an instance, also after its [`crate::Instance`] was dropped.
pub struct EndWatch(Monitor);

impl EndWatch {
    pub(crate) fn new(monitor: Monitor) -> Self {
        Self(monitor)
    }

    /// Waits until every process of the instance has ended, at most a few seconds.
    pub async fn ended(self) {
        self.0.wait_for_end().await;
    }
}
