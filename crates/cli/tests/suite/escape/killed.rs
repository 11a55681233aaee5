//! Cases 12, 13 and 61: the runner is killed by SIGKILL, which it cannot answer. Nothing of the sandbox may live on.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command};

use ringfence_testkit::Who;

use super::judge::unavailable;
use super::stage::{RINGFENCE, Stage};
use super::{leftovers, run};

/// Leaves daemons behind, then waits with a line on stdout that says so.
const DAEMONS_THEN_WAIT: &str = r#"python3 "$0/c12_daemons.py" --token "$1" > /dev/null; echo started; sleep 60"#;

fn start_and_kill(command: &mut Command) -> u32 {
    let mut child = run::start(command);
    wait_for_line(&mut child);
    child.kill().expect("the child is ours");
    run::wait(&mut child);
    child.id()
}

fn wait_for_line(child: &mut Child) {
    let mut line = String::new();
    let stdout = child.stdout.take().expect("stdout is piped");
    BufReader::new(stdout).read_line(&mut line).expect("stdout is readable");
    assert_eq!(line, "started\n");
}

#[test]
fn bare() {
    if unavailable("c61_killed::bare", Who::Root) {
        return;
    }
    let stage = Stage::set(Who::Root);
    let mut command = Who::Root.program(Path::new("/bin/sh"));
    command.args(["-c", DAEMONS_THEN_WAIT]).arg(stage.path("scripts")).arg(stage.token());
    command.env(super::stage::TOKEN, stage.token());
    start_and_kill(&mut command);
    let left = leftovers::processes(&stage);
    leftovers::kill_processes(&stage);
    assert!(!left.is_empty(), "this cannot fail: nothing outlives a process that is killed");
}

fn sandboxed(test: &str, who: Who) {
    if unavailable(test, who) {
        return;
    }
    let stage = Stage::set(who);
    let mut command = stage.ringfence("--pids 64");
    command.args(["--", "sh", "-c", DAEMONS_THEN_WAIT, "/escape", stage.token()]);
    let pid = start_and_kill(&mut command);
    leftovers::assert_no_processes(&stage);
    // What the killed one could not remove is removed by the next.
    run::to_end(who.ringfence(Path::new(RINGFENCE)).args(["run", "--", "true"]));
    leftovers::assert_none(&stage, pid);
}

#[test]
fn root() {
    sandboxed("c61_killed::root", Who::Root);
}

#[test]
fn plain() {
    sandboxed("c61_killed::plain", Who::Plain);
}

#[test]
fn sub() {
    sandboxed("c61_killed::sub", Who::Sub);
}
