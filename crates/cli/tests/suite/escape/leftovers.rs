//! What a case may not leave on the host: processes, control groups, mounts.

use std::fs;
use std::time::{Duration, Instant};

use ringfence_testkit::Snapshot;
use rustix::process::{Pid, Signal, kill_process};

use super::stage::{Stage, TOKEN};

/// Living processes that have the stage's token in their environment: all that a case started, whatever became of
/// them. Zombies have no environment any more.
pub(super) fn processes(stage: &Stage) -> Vec<Pid> {
    let wanted = format!("{TOKEN}={}", stage.token());
    let has_token = |pid: &Pid| {
        let environment = fs::read(format!("/proc/{}/environ", pid.as_raw_nonzero())).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == wanted.as_bytes())
    };
    let entries = fs::read_dir("/proc").expect("/proc is readable").flatten();
    let pids = entries.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?));
    pids.filter(has_token).collect()
}

/// Ends what a bare case left behind on purpose; it may fork while it is being killed.
pub(super) fn kill_processes(stage: &Stage) {
    until_none(|| {
        let found = processes(stage);
        for pid in &found {
            let _ = kill_process(*pid, Signal::KILL);
        }
        found
    });
}

/// Fails unless all that the case started is gone, or goes soon.
pub(super) fn assert_none(stage: &Stage, runner_pid: u32) {
    assert_no_processes(stage);
    assert_no_cgroups(runner_pid);
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("mounts are readable");
    let stage_path = stage.path("").display().to_string();
    let left: Vec<&str> = mounts.lines().filter(|line| line.contains(stage_path.trim_end_matches('/'))).collect();
    assert!(left.is_empty(), "mounts of the case are left on the host: {left:?}");
}

pub(super) fn assert_no_processes(stage: &Stage) {
    let left = until_none(|| processes(stage));
    assert!(left.is_empty(), "processes of the case live on: {left:?}");
}

/// A sandbox's groups carry the runner's process id in their name.
fn assert_no_cgroups(runner_pid: u32) {
    let prefix = format!("/ringfence-{runner_pid}-");
    let of_runner = || -> Vec<String> {
        Snapshot::take().cgroups.into_iter().filter(|group| group.contains(&prefix)).collect()
    };
    let left = until_none(of_runner);
    assert!(left.is_empty(), "control groups of the case are left: {left:?}");
}

/// Looks again until nothing is found, for a few seconds; gives what was found last.
fn until_none<T>(mut look: impl FnMut() -> Vec<T>) -> Vec<T> {
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        let found = look();
        if found.is_empty() || Instant::now() > deadline {
            return found;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
