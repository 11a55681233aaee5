//! The control for the absence of control groups after each case.

use std::io::{Read, Write};
use std::process::Stdio;

use ringfence_testkit::escape::leftovers::{assert_no_cgroups, cgroups};
use ringfence_testkit::{User, process, skip};

#[test]
fn groups_are_seen_while_their_sandbox_lives() {
    let test = "leftovers::groups_are_seen";
    if User::Root.skip_if_unavailable(test) {
        return;
    }
    let mut command = User::Root.ringfence();
    command.args(["run", "--accept", "own-uid", "--", "cat"]).stdin(Stdio::piped());
    let mut child = process::start(&mut command);
    let mut reply = [0];
    let written = child.stdin.as_mut().expect("stdin is piped").write_all(b"x");
    let read = child.stdout.as_mut().expect("stdout is piped").read(&mut reply).expect("read stdout");
    let seen = cgroups(child.id());
    drop(child.stdin.take());
    let code = process::wait(&mut child);
    if code == 125 {
        return skip(test, "this host gives root no control groups");
    }
    assert!(written.is_ok() && read == 1 && code == 0, "the sandbox did not run");
    assert!(!seen.is_empty(), "the groups of a running sandbox are not seen");
    assert_no_cgroups(child.id());
}
