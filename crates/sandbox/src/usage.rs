//! Measures the CPU time, memory and tasks of a sandbox from /proc of the host.
//!
//! Needs neither a cgroup nor the cooperation of the guest.

use std::fs;

use rustix::process::Pid;

/// The resource usage of all processes of a sandbox, its init included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Processes and threads together.
    pub tasks: u32,
    /// CPU time of all running processes, and of ended processes that their parents have waited for.
    pub cpu_ms: u64,
    /// Proportional set size (shared pages are divided among the processes that share them) and page tables.
    pub memory_bytes: Option<u64>,
}

/// Whether a measurement includes memory. It takes long, and a cgroup counts memory more accurately.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryCounting {
    Include,
    Skip,
}

/// Measures the sandbox of this init. `None` if the init has ended or /proc does not list its children.
pub fn measure(init: Pid, max_tasks: u32, memory: MemoryCounting) -> Option<Usage> {
    let tree = ProcessTree::read(init, max_tasks as usize)?;
    let ticks_per_second = rustix::param::clock_ticks_per_second().max(1);
    let ticks: u64 = tree.processes.iter().map(|pid| cpu_ticks(*pid)).sum();
    Some(Usage {
        tasks: u32::try_from(tree.tasks).unwrap_or(u32::MAX),
        cpu_ms: ticks.saturating_mul(1000) / ticks_per_second,
        memory_bytes: (memory == MemoryCounting::Include)
            .then(|| tree.processes.iter().map(|pid| proportional_bytes(*pid)).sum()),
    })
}

/// An init and its descendants. Orphans become children of the init, so none is missed.
pub(crate) struct ProcessTree {
    pub(crate) processes: Vec<i32>,
    tasks: usize,
}

impl ProcessTree {
    /// Reads the tree. Stops after more than `max_processes` processes.
    pub(crate) fn read(init: Pid, max_processes: usize) -> Option<Self> {
        let init = init.as_raw_nonzero().get();
        // Without this file (CONFIG_PROC_CHILDREN) the descendants are unknown.
        fs::read(format!("/proc/{init}/task/{init}/children")).ok()?;
        let (mut processes, mut tasks, mut next) = (vec![init], 0, 0);
        while let Some(pid) = processes.get(next).copied() {
            next += 1;
            let Ok(entries) = fs::read_dir(format!("/proc/{pid}/task")) else { continue };
            for task in entries.flatten() {
                tasks += 1;
                let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
                processes.extend(children.split_whitespace().filter_map(|child| child.parse::<i32>().ok()));
            }
            if processes.len() > max_processes + 1 {
                break;
            }
        }
        Some(Self { processes, tasks })
    }
}

/// The size of the resident pages and page tables of a process, in bytes.
pub(crate) fn resident_bytes(pid: i32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    bytes_of(&text, "VmRSS:") + bytes_of(&text, "VmPTE:")
}

/// Like [`resident_bytes`], but shared pages are divided among the processes that share them. Slow.
pub(crate) fn proportional_bytes(pid: i32) -> u64 {
    let tables = bytes_of(&fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default(), "VmPTE:");
    match fs::read_to_string(format!("/proc/{pid}/smaps_rollup")) {
        Ok(text) => bytes_of(&text, "Pss:") + tables,
        // The process has just ended, or this process may not inspect it.
        Err(_) => resident_bytes(pid),
    }
}

/// The value of a key of `proc_pid_status(5)`, in bytes.
fn bytes_of(text: &str, key: &str) -> u64 {
    let value = text.lines().find_map(|line| line.strip_prefix(key)?.split_whitespace().next()?.parse::<u64>().ok());
    value.unwrap_or(0) * 1024
}

/// The CPU time of a process, and of ended children that it has waited for.
fn cpu_ticks(pid: i32) -> u64 {
    let text = fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
    parse_cpu_ticks(&String::from_utf8_lossy(&text))
}

/// Sums fields 14 to 17 of `proc_pid_stat(5)`. Field 2 is a name in parentheses, which the guest can choose.
fn parse_cpu_ticks(stat: &str) -> u64 {
    let Some((_, after_name)) = stat.rsplit_once(')') else { return 0 };
    after_name.split_whitespace().skip(11).take(4).filter_map(|field| field.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_and_memory_are_counted() {
        let this = Pid::from_raw(std::process::id().cast_signed()).unwrap();
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let (started, has_started) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            started.send(()).unwrap();
            let _ = stopped.recv();
        });
        has_started.recv().unwrap();
        let usage = measure(this, 1 << 15, MemoryCounting::Include).unwrap();
        assert!(usage.tasks >= 2, "{usage:?}");
        assert!(usage.memory_bytes.is_some_and(|bytes| bytes > 100_000), "{usage:?}");
        assert_eq!(measure(this, 1 << 15, MemoryCounting::Skip).unwrap().memory_bytes, None);
        drop(stop);
        thread.join().unwrap();
    }

    #[test]
    fn missing_process_has_no_usage() {
        assert_eq!(measure(Pid::from_raw(i32::MAX).unwrap(), 8, MemoryCounting::Skip), None);
    }

    #[test]
    fn process_name_with_fields_does_not_change_the_cpu_time() {
        let stat = "7 (a) 1 2 3 (b) S 1 7 7 0 -1 4194304 5 0 0 0 10 20 30 40 20 0 1 0";
        assert_eq!(parse_cpu_ticks(stat), 100);
        assert_eq!(parse_cpu_ticks(""), 0);
    }
}
