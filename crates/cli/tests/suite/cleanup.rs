//! Nothing is left behind: after an end, a failure, a kill, and after many of them.

use std::io::Read;
use std::path::Path;

use ringfence_testkit::{HostSnapshot, User, for_each_user, process, run_as, skip, wait_until};

use crate::BINARY;

#[test]
fn a_killed_ringfence_leaves_no_process_and_no_mount() {
    for_each_user("a_killed_ringfence", |who| {
        let mounts = HostSnapshot::take().mounts;
        let word = format!("left-behind-{who:?}-{}", std::process::id());
        // A daemon that ignores every polite signal, and a terminal session of its own.
        let script = format!(
            "(trap '' TERM HUP INT; setsid sh -c 'while :; do sleep 1; done' {word}) & echo up; sleep 100 # {word}"
        );
        let mut child = who.ringfence().args(["run", "--", "sh", "-c", &script]).spawn().expect("it starts");
        let mut up = [0; 3];
        child.stdout.take().expect("stdout is piped").read_exact(&mut up).expect("it runs");
        assert!(process::is_running(&word));
        child.kill().expect("it lives");
        child.wait().expect("it ends");
        wait_until("processes are left", || !process::is_running(&word));
        assert_eq!(HostSnapshot::take().mounts, mounts, "{who:?}");
    });
}

#[test]
fn the_group_of_a_killed_ringfence_is_swept_by_a_later_one() {
    if let Some(reason) = User::Root.unavailable() {
        return skip("the_group_of_a_killed_ringfence", &reason);
    }
    let mut child =
        User::Root.ringfence().args(["run", "--", "sh", "-c", "echo up; sleep 100"]).spawn().expect("it starts");
    let mut up = [0; 3];
    child.stdout.take().expect("stdout is piped").read_exact(&mut up).expect("it runs");
    let own = format!("/ringfence-{}-", child.id());
    let has_group = || HostSnapshot::take().cgroups.iter().any(|path| path.contains(&own));
    assert!(has_group(), "a sandbox of root's has a cgroup");
    child.kill().expect("it lives");
    child.wait().expect("it ends");
    wait_until("a group is left", || {
        run_as(User::Root, &[], &["true"]);
        !has_group()
    });
}

#[test]
fn daemons_end_with_the_command() {
    for_each_user("daemons", |who| {
        let word = format!("daemon-{who:?}-{}", std::process::id());
        let script = format!("setsid sh -c 'trap \"\" TERM HUP; while :; do sleep 1; done' {word} & exit 5");
        assert_eq!(run_as(who, &[], &["sh", "-c", &script]).code, 5, "{who:?}");
        wait_until("a daemon is left", || !process::is_running(&word));
    });
}

#[test]
fn a_hundred_cycles_leave_nothing() {
    for_each_user("a_hundred_cycles", |who| {
        let settled = |who: User| {
            for _ in 0..3 {
                run_as(who, &[], &["true"]);
            }
            HostSnapshot::take()
        };
        let mounts = settled(who).mounts;
        let word = format!("cycle-{who:?}-{}", std::process::id());
        for cycle in 0..100 {
            let script = format!(": {word}; exit {}", cycle % 3);
            assert_eq!(run_as(who, &[], &["sh", "-c", &script]).code, cycle % 3, "{who:?}");
        }
        wait_until("processes are left", || !process::is_running(&word));
        assert_eq!(HostSnapshot::take().mounts, mounts, "{who:?}");
    });
}

/// systemd makes every mount shared: what a sandbox mounts must not travel to the host all the same.
#[test]
fn nothing_is_mounted_on_a_host_whose_mounts_are_shared() {
    for_each_user("shared_mounts", |who| {
        let directory = who.directory();
        let volume = format!("{}:/data:rw", directory.path().display());
        let (uid, gid) = who.ids();
        // A host of its own for this test: a mount namespace in which all is shared, as under systemd.
        let script = format!(
            "mount --make-rshared / && before=$(wc -l </proc/self/mountinfo) && \
             setpriv --reuid {uid} --regid {gid} --clear-groups \
             {BINARY} run --volume {volume} -- sh -c 'echo x >/data/new; cat /proc/self/mountinfo' && \
             test $before = $(wc -l </proc/self/mountinfo) && touch {}/.mcp.json",
            directory.path().display()
        );
        let mut command = User::Root.program(Path::new("/usr/bin/unshare"));
        let output = command.args(["--mount", "sh", "-c", &script]).output().expect("it runs");
        let (inside, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{who:?}: {errors}");
        assert!(
            inside.contains("/data") && !inside.contains("shared:") && !inside.contains("master:"),
            "{who:?}: {inside}"
        );
    });
}
