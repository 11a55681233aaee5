//! Cases 43 and 44: a sandbox must not find anything that another one created, not even while that one still runs.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use ringfence_testkit::escape::report::{self, Finding};
use ringfence_testkit::escape::{Setup, leftovers};
use ringfence_testkit::{User, process};
use serde::Deserialize;

const SCRIPT: &str = "c43_residue.py";
/// Number of locations in which the script leaves marks.
const LOCATIONS: usize = 12;

#[derive(Deserialize)]
struct Marks {
    port: u16,
}

/// Starts a process that leaves marks, and searches for them while it still runs.
fn search_during(leave: &mut Command, search: impl FnOnce(u16) -> Command) -> Vec<(String, Finding)> {
    let mut leaver = process::start(leave.stdin(Stdio::piped()));
    let mut line = String::new();
    BufReader::new(leaver.stdout.take().expect("stdout is piped")).read_line(&mut line).expect("stdout is readable");
    let marks: Marks = serde_json::from_str(&line).expect("script reports its marks");
    let outcome = process::run(&mut search(marks.port));
    drop(leaver.stdin.take());
    process::wait(&mut leaver);
    assert_eq!(outcome.code, 0, "the search failed: {}", outcome.stderr);
    report::parse(&outcome.text()).into_iter().collect()
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
    let search = |port| setup.bare(SCRIPT, &format!("{} --port {port}", arguments("look")));
    let found = search_during(&mut setup.bare(SCRIPT, &arguments("leave")), search);
    process::run(&mut setup.bare(SCRIPT, &arguments("clean")));
    assert_eq!(found.len(), LOCATIONS);
    for (location, finding) in found {
        assert!(matches!(finding, Finding::Escaped(_)), "the case `{location}` cannot fail: {finding:?}");
    }
}

fn sandboxed(test: &str, user: User) {
    if user.skip_if_unavailable(test) {
        return;
    }
    let setup = Setup::new(user);
    let search = |port| setup.sandboxed("", SCRIPT, &format!("{} --port {port}", arguments("look")));
    let found = search_during(&mut setup.sandboxed("", SCRIPT, &arguments("leave")), search);
    assert_eq!(found.len(), LOCATIONS);
    for (location, finding) in found {
        assert!(matches!(finding, Finding::Contained(_)), "`{location}`: {finding:?}");
    }
    let search_on_host = setup.bare(SCRIPT, &format!("{} --port 1", arguments("look"))).output().expect("search runs");
    for (location, finding) in report::parse(&String::from_utf8_lossy(&search_on_host.stdout)) {
        assert!(matches!(finding, Finding::Contained(_)), "left on the host, `{location}`: {finding:?}");
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
