//! Case 62: a protection is missing at the start. The command must not run, and the error names what is missing, how to
//! provide it, and the name by which `--accept` allows its absence.
//!
//! `command_runs_with_all_protections` is the control: the same command runs if nothing is missing.

use std::path::Path;
use std::process::Command;

use ringfence_testkit::escape::Setup;
use ringfence_testkit::{Outcome, User, process};

/// The protection that the test removes from the host.
#[derive(Clone, Copy)]
enum Lack {
    Nothing,
    /// Hidden by a seccomp filter around the runner; the name is that of `without.py`.
    Hidden(&'static str),
    /// Control groups, unmounted in a separate mount namespace of the runner.
    Cgroups,
}

const ALL_ACCEPTED: &str = "--accept cgroup,own-uid,landlock";

fn try_to_run(user: User, lack: Lack, options: &str) -> Outcome {
    let setup = Setup::new(user);
    let mut ringfence = setup.ringfence(options);
    ringfence.args(["--", "echo", "command ran"]);
    let mut command = match lack {
        Lack::Nothing => ringfence,
        Lack::Hidden(protection) => {
            let mut command = user.program(Path::new("/usr/bin/python3"));
            command.arg(setup.path("scripts/without.py")).arg(protection);
            append(command, &ringfence)
        }
        Lack::Cgroups => {
            let mut command = user.program(Path::new("/usr/bin/unshare"));
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

fn assert_refused(test: &str, user: User, lack: Lack, options: &str, expected: &[&str]) {
    if user.skip_if_unavailable(test) {
        return;
    }
    let outcome = try_to_run(user, lack, options);
    assert_eq!((outcome.code, &*outcome.text()), (125, ""), "{user:?} was not refused: {}", outcome.stderr);
    for text in expected {
        assert!(outcome.stderr.contains(text), "{user:?}: the error does not contain `{text}`: {}", outcome.stderr);
    }
}

fn assert_runs(test: &str, user: User, lack: Lack, options: &str) {
    if user.skip_if_unavailable(test) {
        return;
    }
    let outcome = try_to_run(user, lack, options);
    assert_eq!((outcome.code, &*outcome.text()), (0, "command ran\n"), "{user:?} could not run: {}", outcome.stderr);
}

#[test]
fn command_runs_with_all_protections() {
    for user in User::ALL {
        assert_runs("c62_missing::command_runs_with_all_protections", user, Lack::Nothing, "");
    }
}

#[test]
fn missing_landlock_is_refused() {
    for user in User::ALL {
        let expected = ["error: this host lacks Landlock", "hint: use Linux 5.13", "add `landlock` to --accept"];
        assert_refused("c62_missing::missing_landlock_is_refused", user, Lack::Hidden("landlock"), "", &expected);
    }
}

#[test]
fn missing_landlock_can_be_accepted() {
    // Not `WithSubids`: the setuid helpers do not work under the filter around the runner.
    for user in [User::Root, User::Plain] {
        assert_runs("c62_missing::missing_landlock_can_be_accepted", user, Lack::Hidden("landlock"), ALL_ACCEPTED);
    }
}

#[test]
fn missing_seccomp_cannot_be_accepted() {
    for user in [User::Root, User::Plain] {
        assert_refused(
            "c62_missing::missing_seccomp_cannot_be_accepted",
            user,
            Lack::Hidden("seccomp"),
            ALL_ACCEPTED,
            &["seccomp", "hint: "],
        );
    }
}

#[test]
fn missing_namespaces_cannot_be_accepted() {
    for user in User::ALL {
        let expected = ["error: this host lacks user namespaces", "hint: "];
        assert_refused(
            "c62_missing::missing_namespaces_cannot_be_accepted",
            user,
            Lack::Hidden("namespaces"),
            ALL_ACCEPTED,
            &expected,
        );
    }
}

#[test]
fn missing_cgroups_are_refused() {
    let expected = [
        "error: this host lacks control groups",
        "hint: start ringfence in a delegated scope",
        "add `cgroup` to --accept",
    ];
    assert_refused(
        "c62_missing::missing_cgroups_are_refused",
        User::Root,
        Lack::Cgroups,
        "--accept own-uid",
        &expected,
    );
    // Ordinary users without a delegated scope have no control groups.
    for user in [User::Plain, User::WithSubids] {
        assert_refused("c62_missing::missing_cgroups_are_refused", user, Lack::Nothing, "--accept own-uid", &expected);
    }
}

#[test]
fn missing_separate_uid_is_refused() {
    let expected = ["error: this host lacks a separate uid", "hint: install the `uidmap`", "add `own-uid` to --accept"];
    assert_refused(
        "c62_missing::missing_separate_uid_is_refused",
        User::Plain,
        Lack::Nothing,
        "--accept cgroup",
        &expected,
    );
}
