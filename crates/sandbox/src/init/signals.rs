//! Signals to a process of the guest's, and to those that belong to it.

use std::collections::HashMap;
use std::fs;

use rustix::io::Result;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::control::SignalTarget;

/// What a process starts while its family is looked for is found by looking again.
const LOOKS: usize = 3;

pub(super) fn pass_on(pid: Pid, number: i32, target: SignalTarget) {
    let Some(signal) = Signal::from_named_raw(number) else { return };
    // Whoever is not there any more has ended meanwhile; their end is on its way.
    let _ = match target {
        SignalTarget::Process => kill_process(pid, signal),
        SignalTarget::ProcessGroup => kill_process_group(pid, signal),
        SignalTarget::ProcessTree => pass_on_to_family(pid, signal),
    };
}

/// Found before anybody is signalled: those whose parent has ended belong to nobody that could be asked for. Whoever is in
/// the group gets the signal once.
fn pass_on_to_family(pid: Pid, signal: Signal) -> Result<()> {
    let mut family = descendants(pid);
    if signal == Signal::KILL {
        // Whoever is stopped starts nobody any more.
        let _ = kill_process(pid, Signal::STOP);
        for _ in 0..LOOKS {
            for member in &family {
                let _ = kill_process(member.pid, Signal::STOP);
            }
            let found = descendants(pid);
            let is_all = found.iter().all(|member| family.contains(member));
            family = found;
            if is_all {
                break;
            }
        }
    }
    for member in family.iter().filter(|member| member.group != pid) {
        let _ = kill_process(member.pid, signal);
    }
    kill_process_group(pid, signal)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Member {
    pid: Pid,
    group: Pid,
}

/// What it has started, directly or not.
fn descendants(of: Pid) -> Vec<Member> {
    let mut children: HashMap<Pid, Vec<Member>> = HashMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = entry.file_name().to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw);
        // A name may be any bytes.
        let stat = fs::read(entry.path().join("stat")).unwrap_or_default();
        if let (Some(pid), Some((parent, group))) = (pid, parent_and_group_in(&String::from_utf8_lossy(&stat))) {
            children.entry(parent).or_default().push(Member { pid, group });
        }
    }
    let (mut found, mut next) = (Vec::new(), vec![of]);
    while let Some(parent) = next.pop() {
        let own = children.remove(&parent).unwrap_or_default();
        next.extend(own.iter().map(|member| member.pid));
        found.extend(own);
    }
    found
}

/// The fourth and fifth field of `proc_pid_stat(5)`. A process chooses the second, its name in brackets, itself.
fn parent_and_group_in(stat: &str) -> Option<(Pid, Pid)> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_whitespace().skip(1).map(|field| field.parse().ok().and_then(Pid::from_raw));
    fields.next()?.zip(fields.next()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parent_is_found_behind_any_name() {
        let found = parent_and_group_in("7 (a) S 3 7) S 42 6 7 0");
        assert_eq!(found, Pid::from_raw(42).zip(Pid::from_raw(6)));
        assert_eq!(parent_and_group_in("1 (init) S 0 1"), None);
        assert_eq!(parent_and_group_in("7 (cut"), None);
    }

    #[test]
    fn a_family_has_those_of_other_groups_too() {
        // With a name that is no UTF-8.
        let script = "setsid sh -c 'printf \"\\377\" > /proc/$$/comm; sleep 30 & wait' & wait";
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
            kill_process(member.pid, Signal::KILL).unwrap();
        }
        assert!(shell.wait().is_ok() && descendants(pid).is_empty());
    }
}
