//! Sends signals to a process of the guest, its process group or its process tree.

use std::collections::HashMap;
use std::fs;

use rustix::io::Result;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::protocol::SignalTarget;

/// Maximum number of searches for descendants that were started during the previous search.
const MAX_SEARCHES: usize = 3;

pub(super) fn send(pid: Pid, number: i32, target: SignalTarget) {
    let Some(signal) = Signal::from_named_raw(number) else { return };
    // Fails only if the process has just ended; its end is then reported.
    let _ = match target {
        SignalTarget::Process => kill_process(pid, signal),
        SignalTarget::ProcessGroup => kill_process_group(pid, signal),
        SignalTarget::ProcessTree => send_to_tree(pid, signal),
    };
}

/// Finds all descendants before any of them gets the signal, because the children of an ended process can no longer be
/// attributed to it. Descendants in the process group get the signal once.
fn send_to_tree(pid: Pid, signal: Signal) -> Result<()> {
    let mut tree = descendants(pid);
    if signal == Signal::KILL {
        // Stopped processes cannot start others.
        let _ = kill_process(pid, Signal::STOP);
        for _ in 0..MAX_SEARCHES {
            for descendant in &tree {
                let _ = kill_process(descendant.pid, Signal::STOP);
            }
            let found = descendants(pid);
            let is_complete = found.iter().all(|descendant| tree.contains(descendant));
            tree = found;
            if is_complete {
                break;
            }
        }
    }
    for descendant in tree.iter().filter(|descendant| descendant.group != pid) {
        let _ = kill_process(descendant.pid, signal);
    }
    kill_process_group(pid, signal)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Descendant {
    pid: Pid,
    group: Pid,
}

/// The direct and indirect children of a process.
fn descendants(root: Pid) -> Vec<Descendant> {
    let mut children: HashMap<Pid, Vec<Descendant>> = HashMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = entry.file_name().to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw);
        // Read as bytes, because the process name may be invalid UTF-8.
        let stat = fs::read(entry.path().join("stat")).unwrap_or_default();
        if let (Some(pid), Some((parent, group))) = (pid, parse_parent_and_group(&String::from_utf8_lossy(&stat))) {
            children.entry(parent).or_default().push(Descendant { pid, group });
        }
    }
    let (mut found, mut next) = (Vec::new(), vec![root]);
    while let Some(parent) = next.pop() {
        let direct = children.remove(&parent).unwrap_or_default();
        next.extend(direct.iter().map(|child| child.pid));
        found.extend(direct);
    }
    found
}

/// Fields 4 and 5 of `proc_pid_stat(5)`. Field 2 is a name in parentheses, which the process can choose.
fn parse_parent_and_group(stat: &str) -> Option<(Pid, Pid)> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_whitespace().skip(1).map(|field| field.parse().ok().and_then(Pid::from_raw));
    fields.next()?.zip(fields.next()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parent_is_parsed_after_any_process_name() {
        let found = parse_parent_and_group("7 (a) S 3 7) S 42 6 7 0");
        assert_eq!(found, Pid::from_raw(42).zip(Pid::from_raw(6)));
        assert_eq!(parse_parent_and_group("1 (init) S 0 1"), None);
        assert_eq!(parse_parent_and_group("7 (cut"), None);
    }

    #[test]
    fn descendants_in_other_process_groups_are_found() {
        // The name of one process is invalid UTF-8.
        let script = "setsid sh -c 'printf \"\\377\" > /proc/$$/comm; sleep 30 & wait' & wait";
        let mut shell = std::process::Command::new("sh").args(["-c", script]).spawn().unwrap();
        let pid = Pid::from_raw(shell.id().cast_signed()).unwrap();
        let start = std::time::Instant::now();
        while descendants(pid).len() < 2 && start.elapsed().as_secs() < 10 {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let found = descendants(pid);
        assert_eq!(found.len(), 2);
        // One by one: the process group of the shell is that of the tests.
        for descendant in found {
            kill_process(descendant.pid, Signal::KILL).unwrap();
        }
        assert!(shell.wait().is_ok() && descendants(pid).is_empty());
    }
}
