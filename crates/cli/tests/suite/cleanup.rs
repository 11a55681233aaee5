//! A sandbox leaves no process, mount or cgroup on the host: after success, failure, SIGKILL of the runner, and a
//! hundred runs.

use std::io::Read;
use std::path::Path;

use ringfence_testkit::{HostSnapshot, User, for_each_user, process, run_as, skip, wait_until};

use crate::BINARY;

#[test]
fn killed_runner_leaves_no_process_and_no_mount() {
    for_each_user("killed_runner_leaves_no_process_and_no_mount", |user| {
        let mounts = HostSnapshot::take().mounts;
        let marker = format!("left-behind-{user:?}-{}", std::process::id());
        // A daemon in a separate session (setsid) that ignores every signal it can ignore.
        let script = format!(
            "(trap '' TERM HUP INT; setsid sh -c 'while :; do sleep 1; done' {marker}) & echo up; sleep 100 # {marker}"
        );
        let mut child = user.ringfence().args(["run", "--", "sh", "-c", &script]).spawn().expect("runner starts");
        let mut ready = [0; 3];
        child.stdout.take().expect("stdout is piped").read_exact(&mut ready).expect("command runs");
        assert!(process::is_running(&marker));
        child.kill().expect("runner is alive");
        child.wait().expect("runner ends");
        wait_until("processes of the sandbox are still running", || !process::is_running(&marker));
        assert_eq!(HostSnapshot::take().mounts, mounts, "{user:?}");
    });
}

#[test]
fn cgroup_of_killed_runner_is_removed_by_next_run() {
    if let Some(reason) = User::Root.unavailable() {
        return skip("cgroup_of_killed_runner_is_removed_by_next_run", &reason);
    }
    let mut child =
        User::Root.ringfence().args(["run", "--", "sh", "-c", "echo up; sleep 100"]).spawn().expect("runner starts");
    let mut ready = [0; 3];
    child.stdout.take().expect("stdout is piped").read_exact(&mut ready).expect("command runs");
    let prefix = format!("/ringfence-{}-", child.id());
    let has_cgroup = || HostSnapshot::take().cgroups.iter().any(|path| path.contains(&prefix));
    assert!(has_cgroup(), "the sandbox of root has no cgroup");
    child.kill().expect("runner is alive");
    child.wait().expect("runner ends");
    wait_until("the cgroup still exists", || {
        run_as(User::Root, &[], &["true"]);
        !has_cgroup()
    });
}

#[test]
fn daemons_end_with_the_command() {
    for_each_user("daemons_end_with_the_command", |user| {
        let marker = format!("daemon-{user:?}-{}", std::process::id());
        let script = format!("setsid sh -c 'trap \"\" TERM HUP; while :; do sleep 1; done' {marker} & exit 5");
        assert_eq!(run_as(user, &[], &["sh", "-c", &script]).code, 5, "{user:?}");
        wait_until("the daemon is still running", || !process::is_running(&marker));
    });
}

#[test]
fn hundred_runs_leave_no_process_and_no_mount() {
    for_each_user("hundred_runs_leave_no_process_and_no_mount", |user| {
        let snapshot_after_runs = |user: User| {
            for _ in 0..3 {
                run_as(user, &[], &["true"]);
            }
            HostSnapshot::take()
        };
        let mounts = snapshot_after_runs(user).mounts;
        let marker = format!("run-{user:?}-{}", std::process::id());
        for run in 0..100 {
            let script = format!(": {marker}; exit {}", run % 3);
            assert_eq!(run_as(user, &[], &["sh", "-c", &script]).code, run % 3, "{user:?}");
        }
        wait_until("processes of the sandbox are still running", || !process::is_running(&marker));
        assert_eq!(HostSnapshot::take().mounts, mounts, "{user:?}");
    });
}

/// systemd makes every mount shared: mounts of a sandbox must not propagate to the host even then.
#[test]
fn sandbox_mounts_do_not_propagate_to_shared_host_mounts() {
    for_each_user("sandbox_mounts_do_not_propagate_to_shared_host_mounts", |user| {
        let directory = user.directory();
        let volume = format!("{}:/data:rw", directory.path().display());
        let (uid, gid) = user.ids();
        // A separate mount namespace acts as the host: all its mounts are shared, as under systemd.
        let script = format!(
            "mount --make-rshared / && before=$(wc -l </proc/self/mountinfo) && \
             setpriv --reuid {uid} --regid {gid} --clear-groups \
             {BINARY} run --volume {volume} -- sh -c 'echo x >/data/new; cat /proc/self/mountinfo' && \
             test $before = $(wc -l </proc/self/mountinfo) && touch {}/.mcp.json",
            directory.path().display()
        );
        let mut command = User::Root.program(Path::new("/usr/bin/unshare"));
        let output = command.args(["--mount", "sh", "-c", &script]).output().expect("command runs");
        let (inside, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{user:?}: {errors}");
        assert!(
            inside.contains("/data") && !inside.contains("shared:") && !inside.contains("master:"),
            "{user:?}: {inside}"
        );
    });
}
