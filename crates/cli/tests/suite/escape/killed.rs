//! Cases 12, 13 and 61: the runner is killed with SIGKILL, which it cannot handle. No process of the sandbox may
//! survive.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command};

use ringfence_testkit::escape::{Setup, TOKEN_VARIABLE, leftovers};
use ringfence_testkit::{User, process};

/// Shell script that starts daemons, prints a line, and waits.
const DAEMONS_THEN_WAIT: &str = r#"python3 "$0/c12_daemons.py" --token "$1" > /dev/null; echo started; sleep 60"#;

fn start_and_kill(command: &mut Command) -> u32 {
    let mut child = process::start(command);
    wait_for_line(&mut child);
    child.kill().expect("child is alive");
    process::wait(&mut child);
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
    if User::Root.skip_if_unavailable("c61_killed::bare") {
        return;
    }
    let setup = Setup::new(User::Root);
    let mut command = User::Root.program(Path::new("/bin/sh"));
    command.args(["-c", DAEMONS_THEN_WAIT]).arg(setup.path("scripts")).arg(setup.token());
    command.env(TOKEN_VARIABLE, setup.token());
    start_and_kill(&mut command);
    let survivors = leftovers::processes(&setup);
    leftovers::kill_processes(&setup);
    assert!(!survivors.is_empty(), "the case cannot fail: no process survives the kill even without a sandbox");
}

fn sandboxed(test: &str, user: User) {
    if user.skip_if_unavailable(test) {
        return;
    }
    let setup = Setup::new(user);
    let mut command = setup.ringfence("--pids 64");
    command.args(["--", "sh", "-c", DAEMONS_THEN_WAIT, "/escape", setup.token()]);
    let pid = start_and_kill(&mut command);
    leftovers::assert_no_processes(&setup);
    // The next run removes what the killed runner could not remove.
    process::run(user.ringfence().args(["run", "--", "true"]));
    leftovers::assert_none(&setup, pid);
}

#[test]
fn root() {
    sandboxed("c61_killed::root", User::Root);
}

#[test]
fn plain() {
    sandboxed("c61_killed::plain", User::Plain);
}

#[test]
fn sub() {
    sandboxed("c61_killed::sub", User::WithSubids);
}
