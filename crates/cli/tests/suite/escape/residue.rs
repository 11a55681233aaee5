//! Cases 43 and 44: what one sandbox leaves, the next must not find, not even while the first one lives.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use ringfence_testkit::escape::report::{self, Finding};
use ringfence_testkit::escape::{Setup, leftovers};
use ringfence_testkit::{User, process};
use serde::Deserialize;

const SCRIPT: &str = "c43_residue.py";
const PLACES: usize = 12;

#[derive(Deserialize)]
struct Left {
    port: u16,
}

/// Looks for the marks of a process that leaves them and still lives.
fn look_beside(leave: &mut Command, look: impl FnOnce(u16) -> Command) -> Vec<(String, Finding)> {
    let mut leaver = process::start(leave.stdin(Stdio::piped()));
    let mut line = String::new();
    BufReader::new(leaver.stdout.take().expect("stdout is piped")).read_line(&mut line).expect("stdout is readable");
    let left: Left = serde_json::from_str(&line).expect("the marks are left");
    let looked = process::run(&mut look(left.port));
    drop(leaver.stdin.take());
    process::wait(&mut leaver);
    assert_eq!(looked.code, 0, "the look failed: {}", looked.stderr);
    report::parse(&looked.text()).into_iter().collect()
}

fn arguments(only: &str) -> String {
    format!("--only {only} --token {{token}}")
}

#[test]
fn bare() {
    if User::Root.skip_if_unavailable("c43_residue::bare") {
        return;
    }
    let setup = Setup::new(User::Root);
    let look = |port| setup.bare(SCRIPT, &format!("{} --port {port}", arguments("look")));
    let found = look_beside(&mut setup.bare(SCRIPT, &arguments("leave")), look);
    process::run(&mut setup.bare(SCRIPT, &arguments("clean")));
    assert_eq!(found.len(), PLACES);
    for (place, finding) in found {
        assert!(matches!(finding, Finding::Escaped(_)), "`{place}` cannot fail: {finding:?}");
    }
}

fn sandboxed(test: &str, who: User) {
    if who.skip_if_unavailable(test) {
        return;
    }
    let setup = Setup::new(who);
    let look = |port| setup.sandboxed("", SCRIPT, &format!("{} --port {port}", arguments("look")));
    let found = look_beside(&mut setup.sandboxed("", SCRIPT, &arguments("leave")), look);
    assert_eq!(found.len(), PLACES);
    for (place, finding) in found {
        assert!(matches!(finding, Finding::Contained(_)), "`{place}`: {finding:?}");
    }
    let look_on_host = setup.bare(SCRIPT, &format!("{} --port 1", arguments("look"))).output().expect("a look");
    for (place, finding) in report::parse(&String::from_utf8_lossy(&look_on_host.stdout)) {
        assert!(matches!(finding, Finding::Contained(_)), "left on the host, `{place}`: {finding:?}");
    }
    leftovers::assert_no_processes(&setup);
}

#[test]
fn root() {
    sandboxed("c43_residue::root", User::Root);
}

#[test]
fn plain() {
    sandboxed("c43_residue::plain", User::Plain);
}

#[test]
fn sub() {
    sandboxed("c43_residue::sub", User::WithSubids);
}
