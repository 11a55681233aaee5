//! By what each limit is kept on this host: by the kernel's control groups, or by weaker means.

use serde::{Deserialize, Serialize};

use crate::cgroup::{Controller, CgroupParent};

/// Which limits a cgroup keeps. The others are kept, less exactly, by:
/// memory — `RLIMIT_DATA` for each process and a watchdog over their sum, without memfd and System V shared memory;
/// processes — `RLIMIT_NPROC` in the sandbox's user namespace, exact;
/// CPU — affinity to as many CPUs as the limit rounded up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[allow(clippy::struct_field_names)]
pub struct Enforcement {
    pub memory_by_cgroup: bool,
    pub pids_by_cgroup: bool,
    pub cpu_by_cgroup: bool,
}

impl Enforcement {
    pub fn of(place: Option<&CgroupParent>) -> Self {
        let has = |controller| place.is_some_and(|place| place.has_controller(controller));
        Self {
            memory_by_cgroup: has(Controller::Memory),
            pids_by_cgroup: has(Controller::Pids),
            cpu_by_cgroup: has(Controller::Cpu),
        }
    }

    pub fn is_complete(self) -> bool {
        self.memory_by_cgroup && self.pids_by_cgroup && self.cpu_by_cgroup
    }
}
