//! Checks that a case leaves no processes, control groups and mounts on the host.

use std::fs;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::setup::{Setup, TOKEN_VARIABLE};
use crate::{HostSnapshot, process};

/// The kernel ends the processes of a sandbox after its init; a busy host may need a while.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Returns the living processes with the token of the case in their environment: all that the case has started.
/// Zombies have no environment.
pub fn processes(setup: &Setup) -> Vec<Pid> {
    let wanted = format!("{TOKEN_VARIABLE}={}", setup.token());
    let has_token = |pid: &u32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == wanted.as_bytes())
    };
    let found = process::all().into_iter().filter(has_token);
    found.filter_map(|pid| Pid::from_raw(i32::try_from(pid).ok()?)).collect()
}

/// Kills what a bare case has left behind on purpose. Repeats, since those processes may fork at the same time.
pub fn kill_processes(setup: &Setup) {
    until_none(|| {
        let found = processes(setup);
        for pid in &found {
            let _ = kill_process(*pid, Signal::KILL);
        }
        found
    });
}

/// Panics unless everything that the case has started is gone, or is so after a while.
pub fn assert_none(setup: &Setup, runner_pid: u32) {
    assert_no_processes(setup);
    assert_no_cgroups(runner_pid);
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("read the mounts");
    let directory = setup.path("").display().to_string();
    let left: Vec<&str> = mounts.lines().filter(|line| line.contains(directory.trim_end_matches('/'))).collect();
    assert!(left.is_empty(), "mounts of the case are left on the host: {left:?}");
}

pub fn assert_no_processes(setup: &Setup) {
    let left = until_none(|| processes(setup));
    assert!(left.is_empty(), "processes of the case are still running: {left:?}");
}

pub fn assert_no_cgroups(runner_pid: u32) {
    let left = until_none(|| cgroups(runner_pid));
    assert!(left.is_empty(), "control groups of the case are left: {left:?}");
}

/// Returns the control groups of the sandboxes of a runner, whose process id is part of their names.
pub fn cgroups(runner_pid: u32) -> Vec<String> {
    let name = format!("/ringfence-{runner_pid}-");
    HostSnapshot::take().cgroups.into_iter().filter(|group| group.contains(&name)).collect()
}

/// Repeats `find` until it returns nothing or the time is over; returns the last result.
fn until_none<T>(mut find: impl FnMut() -> Vec<T>) -> Vec<T> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let found = find();
        if found.is_empty() || Instant::now() > deadline {
            return found;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
