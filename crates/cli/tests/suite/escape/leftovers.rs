//! Control for `assert_no_cgroups`, which cases call at their end: the cgroups of a running sandbox are found.

use std::io::{Read, Write};
use std::process::Stdio;

use ringfence_testkit::escape::leftovers::{assert_no_cgroups, cgroups};
use ringfence_testkit::{User, process, skip};

#[test]
fn cgroups_of_running_sandbox_are_found() {
    let test = "leftovers::cgroups_of_running_sandbox_are_found";
    if User::Root.skip_if_unavailable(test) {
        return;
    }
    let mut command = User::Root.ringfence();
    command.args(["run", "--accept", "own-uid", "--", "cat"]).stdin(Stdio::piped());
    let mut child = process::start(&mut command);
    let mut reply = [0];
    let written = child.stdin.as_mut().expect("stdin is piped").write_all(b"x");
    let read = child.stdout.as_mut().expect("stdout is piped").read(&mut reply).expect("stdout is readable");
    let found = cgroups(child.id());
    drop(child.stdin.take());
    let code = process::wait(&mut child);
    if code == 125 {
        return skip(test, "this host gives root no control groups");
    }
    assert!(written.is_ok() && read == 1 && code == 0, "the sandbox did not run");
    assert!(!found.is_empty(), "the cgroups of a running sandbox are not found");
    assert_no_cgroups(child.id());
}
