//! What an instance uses of its limits, counted on request and from outside the sandbox where possible.

use ringfence_core::sync::Mutex;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringfence_sandbox::cgroup::MemoryGauge;
use ringfence_sandbox::usage::{self, MemoryCounting};
use ringfence_sandbox::{Control, PendingWorkspaceUsage, WorkspaceUsage};
use rustix::process::Pid;

use crate::instance::is_alive;

/// A sum of memory stays valid this many times as long as it took to compute: the guest decides how long that takes,
/// and the client how often it is requested.
const SUM_VALIDITY_FACTOR: u32 = 20;

/// Reads what one instance uses. Cheap to clone.
#[derive(Clone)]
pub struct Meter {
    pid: Pid,
    /// Shows whether `pid` still belongs to the instance.
    pidfd: Arc<OwnedFd>,
    gauge: Option<Arc<MemoryGauge>>,
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

/// What the processes of an instance use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    pub cpu_ms: u64,
    /// Processes and threads together, as for the limit.
    pub tasks: u32,
    pub memory_bytes: Option<u64>,
    /// None if the instance did not answer in time.
    pub workspace: Option<WorkspaceUsage>,
}

/// A request to measure the workspace that the instance has not answered yet.
pub struct WorkspaceRequest(Option<PendingWorkspaceUsage>);

impl Meter {
    pub(crate) fn new(
        pid: Pid,
        pidfd: Arc<OwnedFd>,
        gauge: Option<Arc<MemoryGauge>>,
        control: Arc<Control>,
        max_tasks: u32,
    ) -> Self {
        Self { pid, pidfd, gauge, control, max_tasks, last_sum: Arc::default() }
    }

    /// The memory that a cgroup counts; cheap. None without a memory cgroup.
    pub fn memory_bytes(&self) -> Option<u64> {
        self.gauge.as_ref().map(|gauge| gauge.bytes())
    }

    /// Asks the instance how full its workspace is. Send all requests before waiting for any answer, so that one
    /// instance that does not answer costs no more time than all together.
    pub fn request_workspace(&self, timeout: Duration) -> WorkspaceRequest {
        WorkspaceRequest(self.control.measure_workspace(timeout).ok())
    }

    /// Reads the usage, with the answer to an earlier request. None if the instance has ended. Blocks.
    pub fn usage(&self, workspace: WorkspaceRequest) -> Option<Usage> {
        let workspace = workspace.0.and_then(|request| request.finish().ok());
        // Locked until the sum is complete, so that concurrent callers share one computation.
        let mut sum = self.last_sum.lock();
        let start = Instant::now();
        let is_known = self.gauge.is_some() || sum.as_ref().is_some_and(|sum| start < sum.valid_until);
        let memory = if is_known { MemoryCounting::Skip } else { MemoryCounting::Include };
        let used = usage::measure(self.pid, self.max_tasks, memory).filter(|_| is_alive(&self.pidfd))?;
        if !is_known {
            let valid_until = Instant::now() + start.elapsed() * SUM_VALIDITY_FACTOR;
            *sum = Some(Sum { valid_until, bytes: used.memory_bytes });
        }
        let memory_bytes = self.memory_bytes().or_else(|| sum.as_ref()?.bytes);
        Some(Usage { cpu_ms: used.cpu_ms, tasks: used.tasks, memory_bytes, workspace })
    }
}
