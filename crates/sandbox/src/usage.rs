//! What the processes of a sandbox hold and have used, seen from outside: no cgroup is needed for it, and the guest is
//! not asked.

use std::fs;

use rustix::process::Pid;

/// What all processes of a sandbox have, its init included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Processes and threads together.
    pub tasks: u32,
    /// Of those that live, and of those whose end somebody has waited for.
    pub cpu_ms: u64,
    /// Resident pages, shared ones divided among their sharers, and page tables.
    pub memory_bytes: Option<u64>,
}

/// Whether to count memory too, which takes long, and of which a cgroup knows more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryCounting {
    Include,
    Skip,
}

/// Sums up the sandbox of this init. None where nobody below it can be seen, or it is gone.
pub fn measure(init: Pid, most_tasks: u32, memory: MemoryCounting) -> Option<Usage> {
    let tree = Tree::of(init, most_tasks as usize)?;
    let ticks_a_second = rustix::param::clock_ticks_per_second().max(1);
    let ticks: u64 = tree.processes.iter().map(|pid| cpu_ticks(*pid)).sum();
    Some(Usage {
        tasks: u32::try_from(tree.tasks).unwrap_or(u32::MAX),
        cpu_ms: ticks.saturating_mul(1000) / ticks_a_second,
        memory_bytes: (memory == MemoryCounting::Include).then(|| tree.processes.iter().map(|pid| proportional(*pid)).sum()),
    })
}

/// The init and all below it. A guest's orphans become the init's children, so none is missed.
pub(crate) struct Tree {
    pub(crate) processes: Vec<i32>,
    tasks: usize,
}

impl Tree {
    /// Stops counting once there are more than `most`.
    pub(crate) fn of(init: Pid, most: usize) -> Option<Self> {
        let init = init.as_raw_nonzero().get();
        // Without this file (CONFIG_PROC_CHILDREN) nobody below the init would be seen.
        fs::read(format!("/proc/{init}/task/{init}/children")).ok()?;
        let (mut processes, mut tasks, mut next) = (vec![init], 0, 0);
        while let Some(pid) = processes.get(next).copied() {
            next += 1;
            let Ok(found) = fs::read_dir(format!("/proc/{pid}/task")) else { continue };
            for task in found.flatten() {
                tasks += 1;
                let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
                processes.extend(children.split_whitespace().filter_map(|child| child.parse::<i32>().ok()));
            }
            if processes.len() > most + 1 {
                break;
            }
        }
        Some(Self { processes, tasks })
    }
}

/// Resident pages and the page tables that map them.
pub(crate) fn resident(pid: i32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    kilobytes(&text, "VmRSS:") + kilobytes(&text, "VmPTE:")
}

/// Like [`resident`], with every shared page divided among its sharers.
pub(crate) fn proportional(pid: i32) -> u64 {
    let tables = kilobytes(&fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default(), "VmPTE:");
    match fs::read_to_string(format!("/proc/{pid}/smaps_rollup")) {
        Ok(text) => kilobytes(&text, "Pss:") + tables,
        // It has just ended, or is not ours to look into: the larger figure stands.
        Err(_) => resident(pid),
    }
}

fn kilobytes(text: &str, key: &str) -> u64 {
    let value = text.lines().find_map(|line| line.strip_prefix(key)?.split_whitespace().next()?.parse::<u64>().ok());
    value.unwrap_or(0) * 1024
}

/// Its own, and that of children it has waited for.
fn cpu_ticks(pid: i32) -> u64 {
    let text = fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
    ticks_in(&String::from_utf8_lossy(&text))
}

/// Fields 14 to 17 of `proc_pid_stat(5)`. The second is a name that the guest may have chosen, in parentheses.
fn ticks_in(stat: &str) -> u64 {
    let Some((_, behind_name)) = stat.rsplit_once(')') else { return 0 };
    behind_name.split_whitespace().skip(11).take(4).filter_map(|field| field.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_seen_with_its_threads() {
        let own = Pid::from_raw(std::process::id().cast_signed()).unwrap();
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let (running, runs) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            running.send(()).unwrap();
            let _ = stopped.recv();
        });
        runs.recv().unwrap();
        let found = measure(own, 1 << 15, MemoryCounting::Include).unwrap();
        assert!(found.tasks >= 2, "{found:?}");
        assert!(found.memory_bytes.is_some_and(|bytes| bytes > 100_000), "{found:?}");
        assert_eq!(measure(own, 1 << 15, MemoryCounting::Skip).unwrap().memory_bytes, None);
        drop(stop);
        thread.join().unwrap();
    }

    #[test]
    fn nobody_is_seen_where_nobody_is() {
        assert_eq!(measure(Pid::from_raw(i32::MAX).unwrap(), 8, MemoryCounting::Skip), None);
    }

    #[test]
    fn a_name_that_looks_like_fields_is_a_name() {
        let stat = "7 (a) 1 2 3 (b) S 1 7 7 0 -1 4194304 5 0 0 0 10 20 30 40 20 0 1 0";
        assert_eq!(ticks_in(stat), 100);
        assert_eq!(ticks_in(""), 0);
    }
}
