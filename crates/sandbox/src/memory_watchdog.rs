//! Enforces the memory limit from the host if no cgroup does: sums up the memory of the sandbox's processes.
//!
//! This is weaker than a cgroup: between two checks a guest can exceed the limit by as much as it can touch in that
//! time. `RLIMIT_DATA` limits each process in addition. The watchdog counts resident pages, page tables and sockets,
//! whose buffers belong to no process.

use std::fs;

use rustix::process::Pid;

use crate::usage::{ProcessTree, proportional_bytes, resident_bytes};
use ringfence_core::Limits;

/// Maximum size of the buffers of a socket. TCP buffers have this size in sandboxes, and seccomp prevents larger ones.
const SOCKET_BYTES: u64 = 256 << 10;

/// A limit that a sandbox has exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitBreach {
    Memory {
        used: u64,
        limit: u64,
    },
    Sockets {
        count: u64,
        limit: u64,
    },
    /// The processes are not visible in /proc, so the limit cannot be enforced.
    Unobservable,
}

#[derive(Debug)]
pub(crate) struct MemoryWatchdog {
    init: Pid,
    memory_bytes: u64,
    max_processes: usize,
}

impl MemoryWatchdog {
    pub(crate) fn new(init: Pid, limits: &Limits) -> Self {
        Self { init, memory_bytes: limits.memory_bytes, max_processes: limits.pids as usize }
    }

    pub(crate) fn check(&self) -> Option<LimitBreach> {
        let init = self.init.as_raw_nonzero().get();
        if fs::metadata(format!("/proc/{init}")).is_err() {
            return Some(LimitBreach::Unobservable);
        }
        let sockstat = fs::read_to_string(format!("/proc/{init}/net/sockstat")).unwrap_or_default();
        let Some(sockets) = sockstat.lines().next().and_then(|line| line.split_whitespace().last()?.parse().ok())
        else {
            return Some(LimitBreach::Unobservable);
        };
        let max_sockets = self.memory_bytes / max_socket_bytes();
        if sockets > max_sockets {
            return Some(LimitBreach::Sockets { count: sockets, limit: max_sockets });
        }
        let Some(ProcessTree { processes, .. }) = ProcessTree::read(self.init, self.max_processes) else {
            return Some(LimitBreach::Unobservable);
        };
        let resident: u64 = processes.iter().map(|pid| resident_bytes(*pid)).sum();
        if resident <= self.memory_bytes {
            return None;
        }
        // This sum has shared pages several times; only now is the exact but slow count needed.
        let used: u64 = processes.iter().map(|pid| proportional_bytes(*pid)).sum();
        (used > self.memory_bytes).then_some(LimitBreach::Memory { used, limit: self.memory_bytes })
    }
}

fn max_socket_bytes() -> u64 {
    let read = |name: &str| fs::read_to_string(format!("/proc/sys/net/core/{name}")).ok()?.trim().parse::<u64>().ok();
    let host = read("wmem_default").into_iter().chain(read("rmem_default")).max();
    host.unwrap_or(SOCKET_BYTES).max(SOCKET_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_over_the_limit_is_a_breach() {
        let this = Pid::from_raw(std::process::id().cast_signed()).unwrap();
        let limits = |memory_bytes| Limits { memory_bytes, pids: 4096, cpus: 1.0, open_files: 16 };
        assert!(matches!(
            MemoryWatchdog::new(this, &limits(4096)).check(),
            Some(LimitBreach::Memory { .. } | LimitBreach::Sockets { .. })
        ));
        assert_eq!(MemoryWatchdog::new(this, &limits(1 << 40)).check(), None);
    }

    #[test]
    fn process_that_is_not_visible_is_a_breach() {
        let missing = Pid::from_raw(i32::MAX).unwrap();
        let limits = Limits { memory_bytes: 1 << 40, pids: 2, cpus: 1.0, open_files: 16 };
        assert_eq!(MemoryWatchdog::new(missing, &limits).check(), Some(LimitBreach::Unobservable));
    }
}
