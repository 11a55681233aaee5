//! Signals to a process of the guest's, and to those that belong to it.

use std::collections::HashMap;
use std::fs;

use rustix::io::Result;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::control::Target;

/// What a process starts while its family is looked for is found by looking again.
const LOOKS: usize = 3;

pub(super) fn pass_on(pid: Pid, number: i32, target: Target) {
    let Some(signal) = Signal::from_named_raw(number) else { return };
    // Whoever is not there any more has ended meanwhile; their end is on its way.
    let _ = match target {
        Target::Command => kill_process(pid, signal),
        Target::Group => kill_process_group(pid, signal),
        Target::Family => pass_on_to_family(pid, signal),
    };
}

/// Found before anybody is signalled: those whose parent has ended belong to nobody that could be asked for.
fn pass_on_to_family(pid: Pid, signal: Signal) -> Result<()> {
    let mut family = descendants(pid);
    if signal == Signal::KILL {
        // Whoever is stopped starts nobody any more.
        let _ = kill_process(pid, Signal::STOP);
        for _ in 0..LOOKS {
            for member in &family {
                let _ = kill_process(*member, Signal::STOP);
            }
            let found = descendants(pid);
            if found.len() == family.len() {
                break;
            }
            family = found;
        }
    }
    for member in family {
        let _ = kill_process(member, signal);
    }
    kill_process_group(pid, signal)
}

/// What it has started, directly or not.
fn descendants(of: Pid) -> Vec<Pid> {
    let mut children: HashMap<Pid, Vec<Pid>> = HashMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = entry.file_name().to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw);
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        if let (Some(pid), Some(parent)) = (pid, parent_in(&stat)) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let (mut found, mut next) = (Vec::new(), vec![of]);
    while let Some(parent) = next.pop() {
        let own = children.remove(&parent).unwrap_or_default();
        next.extend(&own);
        found.extend(own);
    }
    found
}

/// The fourth field of `proc_pid_stat(5)`. A process chooses the second, its name in brackets, itself.
fn parent_in(stat: &str) -> Option<Pid> {
    let (_, after_name) = stat.rsplit_once(')')?;
    Pid::from_raw(after_name.split_whitespace().nth(1)?.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parent_is_found_behind_any_name() {
        assert_eq!(parent_in("7 (a) S 3 7) S 42 7 7 0").map(|pid| pid.as_raw_nonzero().get()), Some(42));
        assert_eq!(parent_in("1 (init) S 0 1"), None);
        assert_eq!(parent_in("7 (cut"), None);
    }

    #[test]
    fn a_family_has_those_of_other_groups_too() {
        let script = "setsid sh -c 'sleep 30 & wait' & wait";
        let mut shell = std::process::Command::new("sh").args(["-c", script]).spawn().unwrap();
        let pid = Pid::from_raw(shell.id().cast_signed()).unwrap();
        let start = std::time::Instant::now();
        while descendants(pid).len() < 2 && start.elapsed().as_secs() < 10 {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let family = descendants(pid);
        assert_eq!(family.len(), 2);
        // The group is that of the tests: not to be killed.
        for member in family {
            kill_process(member, Signal::KILL).unwrap();
        }
        assert!(shell.wait().is_ok() && descendants(pid).is_empty());
    }
}
