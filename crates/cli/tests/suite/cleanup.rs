//! Nothing is left behind: after an end, a failure, a kill, and after many of them.

use std::io::Read;
use std::path::Path;
use std::time::{Duration, Instant};

use ringfence_testkit::{Snapshot, Who, skip};

use crate::everyone::{BINARY, for_everyone, run};

/// Processes whose command line holds this word.
fn processes_with(word: &str) -> Vec<String> {
    let entries = std::fs::read_dir("/proc").expect("/proc is readable").flatten();
    let find = |entry: std::fs::DirEntry| {
        let line = std::fs::read(entry.path().join("cmdline")).ok()?;
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        line.contains(word).then_some(line)
    };
    entries.filter_map(find).collect()
}

pub(crate) fn is_running(word: &str) -> bool {
    !processes_with(word).is_empty()
}

/// Waits for something that the kernel does after a process has ended; fails after a while.
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_killed_ringfence_leaves_no_process_and_no_mount() {
    for_everyone("a_killed_ringfence", |who| {
        let mounts = Snapshot::take().mounts;
        let word = format!("left-behind-{who:?}-{}", std::process::id());
        // A daemon that ignores every polite signal, and a terminal session of its own.
        let script = format!(
            "(trap '' TERM HUP INT; setsid sh -c 'while :; do sleep 1; done' {word}) & echo up; sleep 100 # {word}"
        );
        let mut child =
            who.ringfence(Path::new(BINARY)).args(["run", "--", "sh", "-c", &script]).spawn().expect("it starts");
        let mut up = [0; 3];
        child.stdout.take().expect("stdout is piped").read_exact(&mut up).expect("it runs");
        assert!(!processes_with(&word).is_empty());
        child.kill().expect("it lives");
        child.wait().expect("it ends");
        eventually("processes are left", || processes_with(&word).is_empty());
        assert_eq!(Snapshot::take().mounts, mounts, "{who:?}");
    });
}

#[test]
fn the_group_of_a_killed_ringfence_is_swept_by_a_later_one() {
    if let Some(reason) = Who::Root.unavailable() {
        return skip("the_group_of_a_killed_ringfence", &reason);
    }
    let mut child = Who::Root
        .ringfence(Path::new(BINARY))
        .args(["run", "--", "sh", "-c", "echo up; sleep 100"])
        .spawn()
        .expect("it starts");
    let mut up = [0; 3];
    child.stdout.take().expect("stdout is piped").read_exact(&mut up).expect("it runs");
    let own = format!("/ringfence-{}-", child.id());
    let has_group = || Snapshot::take().cgroups.iter().any(|path| path.contains(&own));
    assert!(has_group(), "a sandbox of root's has a cgroup");
    child.kill().expect("it lives");
    child.wait().expect("it ends");
    eventually("a group is left", || {
        run(Who::Root, &[], &["true"]);
        !has_group()
    });
}

#[test]
fn daemons_end_with_the_command() {
    for_everyone("daemons", |who| {
        let word = format!("daemon-{who:?}-{}", std::process::id());
        let script = format!("setsid sh -c 'trap \"\" TERM HUP; while :; do sleep 1; done' {word} & exit 5");
        assert_eq!(run(who, &[], &["sh", "-c", &script]).code, 5, "{who:?}");
        eventually("a daemon is left", || processes_with(&word).is_empty());
    });
}

#[test]
fn a_hundred_cycles_leave_nothing() {
    for_everyone("a_hundred_cycles", |who| {
        let settled = |who: Who| {
            for _ in 0..3 {
                run(who, &[], &["true"]);
            }
            Snapshot::take()
        };
        let mounts = settled(who).mounts;
        let word = format!("cycle-{who:?}-{}", std::process::id());
        for cycle in 0..100 {
            let script = format!(": {word}; exit {}", cycle % 3);
            assert_eq!(run(who, &[], &["sh", "-c", &script]).code, cycle % 3, "{who:?}");
        }
        eventually("processes are left", || processes_with(&word).is_empty());
        assert_eq!(Snapshot::take().mounts, mounts, "{who:?}");
    });
}

/// systemd makes every mount shared: what a sandbox mounts must not travel to the host all the same.
#[test]
fn nothing_is_mounted_on_a_host_whose_mounts_are_shared() {
    for_everyone("shared_mounts", |who| {
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
        let mut command = Who::Root.program(Path::new("/usr/bin/unshare"));
        let output = command.args(["--mount", "sh", "-c", &script]).output().expect("it runs");
        let (inside, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{who:?}: {errors}");
        assert!(
            inside.contains("/data") && !inside.contains("shared:") && !inside.contains("master:"),
            "{who:?}: {inside}"
        );
    });
}
