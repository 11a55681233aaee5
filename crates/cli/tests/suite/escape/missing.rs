//! Case 62: a protection is missing at the start. The command must not run, and the person is told what is missing,
//! what to do about it, and by which name it could be accepted.
//!
//! `present` is the proof that these can fail: the same command runs where nothing is missing.

use std::path::Path;
use std::process::Command;

use ringfence_testkit::escape::Setup;
use ringfence_testkit::{Outcome, User, process};

/// What the host is made to lack.
#[derive(Clone, Copy)]
enum Lack {
    Nothing,
    /// Hidden by a seccomp filter around the runner, by its name in `without.py`.
    Hidden(&'static str),
    /// Control groups, which are unmounted in a mount namespace of the runner's own.
    Cgroups,
}

const ALL_ACCEPTED: &str = "--accept cgroup,own-uid,landlock";

fn try_to_run(who: User, lack: Lack, options: &str) -> Outcome {
    let setup = Setup::new(who);
    let mut ringfence = setup.ringfence(options);
    ringfence.args(["--", "echo", "it ran"]);
    let mut command = match lack {
        Lack::Nothing => ringfence,
        Lack::Hidden(protection) => {
            let mut command = who.program(Path::new("/usr/bin/python3"));
            command.arg(setup.path("scripts/without.py")).arg(protection);
            append(command, &ringfence)
        }
        Lack::Cgroups => {
            let mut command = who.program(Path::new("/usr/bin/unshare"));
            command.args(["--mount", "sh", "-c", r#"umount --recursive /sys/fs/cgroup && exec "$@""#, "sh"]);
            append(command, &ringfence)
        }
    };
    process::run(&mut command)
}

fn append(mut command: Command, rest: &Command) -> Command {
    command.arg(rest.get_program()).args(rest.get_args());
    command
}

fn assert_refused(test: &str, who: User, lack: Lack, options: &str, says: &[&str]) {
    if who.skip_if_unavailable(test) {
        return;
    }
    let ended = try_to_run(who, lack, options);
    assert_eq!((ended.code, &*ended.text()), (125, ""), "{who:?} was not refused: {}", ended.stderr);
    for word in says {
        assert!(ended.stderr.contains(word), "{who:?} is not told `{word}`: {}", ended.stderr);
    }
}

fn assert_runs(test: &str, who: User, lack: Lack, options: &str) {
    if who.skip_if_unavailable(test) {
        return;
    }
    let ended = try_to_run(who, lack, options);
    assert_eq!((ended.code, &*ended.text()), (0, "it ran\n"), "{who:?} could not run: {}", ended.stderr);
}

#[test]
fn present() {
    for who in User::ALL {
        assert_runs("c62_missing::present", who, Lack::Nothing, "");
    }
}

#[test]
fn landlock() {
    for who in User::ALL {
        let says = ["error: this host lacks Landlock", "hint: use Linux 5.13", "add `landlock` to --accept"];
        assert_refused("c62_missing::landlock", who, Lack::Hidden("landlock"), "", &says);
    }
}

#[test]
fn landlock_accepted() {
    // Not `Sub`: the filter around the runner keeps the setuid helpers from working.
    for who in [User::Root, User::Plain] {
        assert_runs("c62_missing::landlock_accepted", who, Lack::Hidden("landlock"), ALL_ACCEPTED);
    }
}

#[test]
fn seccomp_cannot_be_accepted() {
    for who in [User::Root, User::Plain] {
        assert_refused("c62_missing::seccomp", who, Lack::Hidden("seccomp"), ALL_ACCEPTED, &["seccomp", "hint: "]);
    }
}

#[test]
fn namespaces_cannot_be_accepted() {
    for who in User::ALL {
        let says = ["error: this host lacks user namespaces", "hint: "];
        assert_refused("c62_missing::namespaces", who, Lack::Hidden("namespaces"), ALL_ACCEPTED, &says);
    }
}

#[test]
fn cgroups() {
    let says = [
        "error: this host lacks control groups",
        "hint: start ringfence in a delegated scope",
        "add `cgroup` to --accept",
    ];
    assert_refused("c62_missing::cgroups", User::Root, Lack::Cgroups, "--accept own-uid", &says);
    // An ordinary user without a scope of its own has none to begin with.
    for who in [User::Plain, User::WithSubids] {
        assert_refused("c62_missing::cgroups", who, Lack::Nothing, "--accept own-uid", &says);
    }
}

#[test]
fn own_uid() {
    let says = ["error: this host lacks a separate uid", "hint: install the `uidmap`", "add `own-uid` to --accept"];
    assert_refused("c62_missing::own_uid", User::Plain, Lack::Nothing, "--accept cgroup", &says);
}
