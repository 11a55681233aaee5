//! Which mechanism enforces each limit on this host.

use serde::{Deserialize, Serialize};

use crate::cgroup::{CgroupParent, Controller};

/// The limits that a cgroup enforces. Without a cgroup, weaker mechanisms enforce them:
///
/// - memory: `RLIMIT_DATA` for each process, and a watchdog over the sum of all processes. Memory that belongs to no
///   process (memfd, System V shared memory) is refused.
/// - processes: `RLIMIT_NPROC` in the sandbox's user namespace; exact.
/// - CPU: affinity to as many CPUs as the limit, rounded up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[allow(clippy::struct_field_names)]
pub struct Enforcement {
    pub memory_by_cgroup: bool,
    pub pids_by_cgroup: bool,
    pub cpu_by_cgroup: bool,
}

impl Enforcement {
    /// Returns the enforcement for sandboxes whose cgroups are made in `parent`.
    pub fn in_parent(parent: Option<&CgroupParent>) -> Self {
        let has = |controller| parent.is_some_and(|parent| parent.has_controller(controller));
        Self {
            memory_by_cgroup: has(Controller::Memory),
            pids_by_cgroup: has(Controller::Pids),
            cpu_by_cgroup: has(Controller::Cpu),
        }
    }

    /// Whether cgroups enforce all limits.
    pub fn is_complete(self) -> bool {
        self.memory_by_cgroup && self.pids_by_cgroup && self.cpu_by_cgroup
    }
}
