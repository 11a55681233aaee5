//! A scope under a supervisor: every worker serves within the one that the first was given.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::sync::Arc;

use ringfence_testkit::{Server, User, wait_until};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::desk::{Desk, is_denied, tools};
use crate::up::{command, end, signal, up_in, worker};

#[test]
fn a_worker_that_takes_the_place_of_another_serves_within_the_same_scope() {
    let desk = Desk::of(User::Root);
    let scope = desk.scope(&json!({"capabilities": ["code", "sessions"]}));
    let (server, _) = up_in(Arc::clone(&desk.state), &["--scope", &scope], &[]);
    let check = || {
        assert_eq!(tools(&server), ["execute_code", "get_sessions", "stop_session", "get_volume_path", "run_python"]);
        let answer = server.call("execute_command", &json!({"command": "id"}));
        assert!(is_denied(&answer), "{answer}");
    };
    check();
    let session = server.create_session("python", "x = 'kept'");
    let first = worker(&server.state);
    let environment = std::fs::read(format!("/proc/{first}/environ")).expect("it is ours");
    let named = format!("RINGFENCE_SCOPE_FILE={scope}\0");
    assert!(environment.windows(named.len()).any(|part| part == named.as_bytes()), "by the variable");
    signal(first, Signal::KILL);
    wait_until("no other takes its place", || worker(&server.state) != first);
    assert_eq!(server.execute(&session, "print(x)")["stdout"], "kept\n");
    check();
    assert!(desk.path("scope.json").exists(), "the next worker needs it");
    assert_eq!(end(server).0, Some(0));
    assert!(!desk.path("scope.json").exists(), "the file is removed at the end");
}

#[test]
fn a_scope_that_was_changed_is_refused_by_the_next_worker() {
    let desk = Desk::of(User::Root);
    let scope = desk.scope(&json!({"capabilities": ["code"]}));
    let mut process = command(&desk.state, &["--scope", &scope, "--max-restarts", "1"], &[])
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut lines = BufReader::new(process.stdout.take().expect("stdout is piped")).lines();
    lines.next().expect("it says where it listens").expect("it is text");
    // Dropped, it is ended.
    let mut server = Server { process, address: String::new(), state: Arc::clone(&desk.state) };
    let first = worker(&desk.state);
    desk.scope(&json!({"capabilities": ["code", "command"]}));
    signal(first, Signal::KILL);
    wait_until("it goes on", || server.process.try_wait().expect("it is ours").is_some());
    let last = lines.next().expect("it says why it ended").expect("it is text");
    assert_eq!(server.process.wait().expect("it ended").code(), Some(75), "{last}");
    let said: Value = serde_json::from_str(&last).expect("JSON");
    let stderr = said["stderr"].to_string();
    assert!(stderr.contains("has changed since this endpoint was started"), "{last}");
}

#[test]
fn a_worker_does_not_serve_without_the_scope_that_it_was_given() {
    let desk = Desk::of(User::Root);
    let scope = desk.scope(&json!({}));
    let mut command = User::Root.ringfence();
    command.args(["worker", "--port", "0", "--scope", &scope]);
    let said = desk.refused(command);
    assert!(said.contains("RINGFENCE_SCOPE_FILE"), "{said}");
}
