//! The limits of an instance: the mechanism that enforces each, and how much of them is used.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ringfence_core::sync::Mutex;
use ringfence_sandbox::usage::MemoryCounting;
use ringfence_sandbox::{Control, PendingWorkspaceUsage, WorkspaceUsage};

use crate::monitor::Monitor;

/// The mechanism that enforces each limit of an instance, as text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Enforcement {
    pub memory: &'static str,
    pub processes: &'static str,
    pub cpu: &'static str,
    pub open_files: &'static str,
    pub workspace: &'static str,
}

impl From<ringfence_sandbox::Enforcement> for Enforcement {
    fn from(native: ringfence_sandbox::Enforcement) -> Self {
        let by = |is_cgroup: bool, otherwise| if is_cgroup { "cgroup" } else { otherwise };
        Self {
            memory: by(native.memory_by_cgroup, "rlimit and watchdog"),
            processes: by(native.pids_by_cgroup, "rlimit"),
            cpu: by(native.cpu_by_cgroup, "affinity"),
            open_files: "rlimit",
            workspace: "tmpfs",
        }
    }
}

/// A sum of memory stays valid this many times as long as it took to compute: the guest decides how long that takes,
/// and the client how often it is requested.
const SUM_VALIDITY_FACTOR: u32 = 20;

/// Reads what one instance uses, from outside the instance where possible. Cheap to clone.
#[derive(Clone)]
pub struct Meter {
    monitor: Monitor,
    control: Arc<Control>,
    max_tasks: u32,
    /// Only used where no cgroup counts the memory.
    last_sum: Arc<Mutex<Option<Sum>>>,
}

/// The memory of all processes together, at one moment.
struct Sum {
    valid_until: Instant,
    bytes: Option<u64>,
}

/// The resources that the processes of an instance use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    pub cpu_ms: u64,
    /// Processes and threads together, as for the limit.
    pub tasks: u32,
    pub memory_bytes: Option<u64>,
    /// None if the instance did not respond in time.
    pub workspace: Option<WorkspaceUsage>,
}

/// A request to measure the workspace to which the instance has not responded yet.
pub struct WorkspaceRequest(Option<PendingWorkspaceUsage>);

impl Meter {
    pub(crate) fn new(monitor: Monitor, control: Arc<Control>, max_tasks: u32) -> Self {
        Self { monitor, control, max_tasks, last_sum: Arc::default() }
    }

    /// The memory that a cgroup counts; cheap. None without a memory cgroup.
    pub fn memory_bytes(&self) -> Option<u64> {
        self.monitor.memory_bytes()
    }

    /// Requests the usage of the workspace. Send all requests before waiting for any response, so that one instance
    /// that does not respond costs no more time than all together.
    pub fn request_workspace(&self, timeout: Duration) -> WorkspaceRequest {
        WorkspaceRequest(self.control.measure_workspace(timeout).ok())
    }

    /// Reads the usage, with the response to an earlier request. None if the instance has ended. Blocks.
    pub fn usage(&self, workspace: WorkspaceRequest) -> Option<Usage> {
        let workspace = workspace.0.and_then(|request| request.finish().ok());
        // Locked until the sum is complete, so that concurrent callers share one computation.
        let mut sum = self.last_sum.lock();
        let start = Instant::now();
        let is_known = self.monitor.counts_memory() || sum.as_ref().is_some_and(|sum| start < sum.valid_until);
        let memory = if is_known { MemoryCounting::Skip } else { MemoryCounting::Include };
        let used = self.monitor.measure(self.max_tasks, memory)?;
        if !is_known {
            let valid_until = Instant::now() + start.elapsed() * SUM_VALIDITY_FACTOR;
            *sum = Some(Sum { valid_until, bytes: used.memory_bytes });
        }
        let memory_bytes = self.memory_bytes().or_else(|| sum.as_ref()?.bytes);
        Some(Usage { cpu_ms: used.cpu_ms, tasks: used.tasks, memory_bytes, workspace })
    }
}
