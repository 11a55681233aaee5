//! Keeps the memory limit where no cgroup does: sums up what the sandbox's processes hold, from outside.
//!
//! Weaker than a cgroup: between two checks a guest can overshoot by what it manages to touch in that
//! time, and each process is bounded by `RLIMIT_DATA` besides. It sees resident pages, page tables and
//! the number of sockets, whose buffers belong to no process.

use std::fs;

use rustix::process::Pid;

use crate::usage::{Tree, proportional, resident};
use ringfence_core::Limits;

/// Most that a socket can hold in flight: the walls keep TCP's buffers at this and refuse larger ones.
const SOCKET_BYTES: u64 = 256 << 10;

/// A limit that was broken.
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
    /// The processes could no longer be seen, so nothing could be promised any more.
    Unobservable,
}

#[derive(Debug)]
pub(crate) struct Watchdog {
    init: Pid,
    memory_bytes: u64,
    most_processes: usize,
}

impl Watchdog {
    pub(crate) fn new(init: Pid, limits: &Limits) -> Self {
        Self { init, memory_bytes: limits.memory_bytes, most_processes: limits.pids as usize }
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
        let most_sockets = self.memory_bytes / socket_bytes();
        if sockets > most_sockets {
            return Some(LimitBreach::Sockets { count: sockets, limit: most_sockets });
        }
        let Some(Tree { processes, .. }) = Tree::of(self.init, self.most_processes) else { return Some(LimitBreach::Unobservable) };
        let resident: u64 = processes.iter().map(|pid| resident(*pid)).sum();
        if resident <= self.memory_bytes {
            return None;
        }
        // Shared pages were counted once for each sharer; only now is the exact, slow count worth it.
        let used: u64 = processes.iter().map(|pid| proportional(*pid)).sum();
        (used > self.memory_bytes).then_some(LimitBreach::Memory { used, limit: self.memory_bytes })
    }
}

fn socket_bytes() -> u64 {
    let read = |name: &str| fs::read_to_string(format!("/proc/sys/net/core/{name}")).ok()?.trim().parse::<u64>().ok();
    let host = read("wmem_default").into_iter().chain(read("rmem_default")).max();
    host.unwrap_or(SOCKET_BYTES).max(SOCKET_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_a_process_tree_is_seen() {
        let own = Pid::from_raw(std::process::id().cast_signed()).unwrap();
        let limits = |memory_bytes| Limits { memory_bytes, pids: 4096, cpus: 1.0, open_files: 16 };
        assert!(matches!(
            Watchdog::new(own, &limits(4096)).check(),
            Some(LimitBreach::Memory { .. } | LimitBreach::Sockets { .. })
        ));
        assert_eq!(Watchdog::new(own, &limits(1 << 40)).check(), None);
    }

    #[test]
    fn a_process_that_cannot_be_seen_is_a_breach() {
        let gone = Pid::from_raw(i32::MAX).unwrap();
        let limits = Limits { memory_bytes: 1 << 40, pids: 2, cpus: 1.0, open_files: 16 };
        assert_eq!(Watchdog::new(gone, &limits).check(), Some(LimitBreach::Unobservable));
    }
}
