//! What a case may not leave on the host: processes, control groups, mounts.

use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use ringfence_testkit::{Snapshot, Who, skip};
use rustix::process::{Pid, Signal, kill_process};

use super::judge::unavailable;
use super::run;
use super::stage::{RINGFENCE, Stage, TOKEN};

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

fn assert_no_cgroups(runner_pid: u32) {
    let left = until_none(|| cgroups(runner_pid));
    assert!(left.is_empty(), "control groups of the case are left: {left:?}");
}

/// A sandbox's groups carry the runner's process id in their name.
fn cgroups(runner_pid: u32) -> Vec<String> {
    let name = format!("/ringfence-{runner_pid}-");
    Snapshot::take().cgroups.into_iter().filter(|group| group.contains(&name)).collect()
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

/// The proof that the absence of groups means something.
#[test]
fn groups_are_seen_while_their_sandbox_lives() {
    let test = "leftovers::groups_are_seen";
    if unavailable(test, Who::Root) {
        return;
    }
    let mut command = Who::Root.ringfence(Path::new(RINGFENCE));
    command.args(["run", "--accept", "own-uid", "--", "cat"]).stdin(Stdio::piped());
    let mut child = run::start(&mut command);
    let mut answer = [0];
    let echoed = child.stdin.as_mut().expect("stdin is piped").write_all(b"x");
    let read = child.stdout.as_mut().expect("stdout is piped").read(&mut answer).expect("stdout is readable");
    let seen = cgroups(child.id());
    drop(child.stdin.take());
    let code = run::wait(&mut child);
    if code == 125 {
        return skip(test, "this host gives root no control groups");
    }
    assert!(echoed.is_ok() && read == 1 && code == 0, "the sandbox did not live");
    assert!(!seen.is_empty(), "the groups of a living sandbox are not seen");
    assert_no_cgroups(child.id());
}
