//! A scope under a supervisor: every worker has the scope of the first one.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::sync::Arc;

use ringfence_testkit::{Server, User, wait_until};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::fixture::{Fixture, is_denied, tools};
use crate::up::{command, end, signal, up_in, worker};

#[test]
fn replacement_worker_has_the_same_scope() {
    let fixture = Fixture::new(User::Root);
    let scope = fixture.scope(&json!({"capabilities": ["code", "sessions"]}));
    let (server, _) = up_in(Arc::clone(&fixture.state), &["--scope", &scope], &[]);
    let check = || {
        assert_eq!(tools(&server), ["execute_code", "get_sessions", "stop_session", "get_volume_path", "run_python"]);
        let response = server.call("execute_command", &json!({"command": "id"}));
        assert!(is_denied(&response), "{response}");
    };
    check();
    let session = server.create_session("python", "x = 'preserved'");
    let first = worker(&server.state);
    let environment = std::fs::read(format!("/proc/{first}/environ")).expect("environment is read");
    let variable = format!("RINGFENCE_SCOPE_FILE={scope}\0");
    assert!(environment.windows(variable.len()).any(|part| part == variable.as_bytes()), "the variable is not set");
    signal(first, Signal::KILL);
    wait_until("the worker is not replaced", || worker(&server.state) != first);
    assert_eq!(server.execute(&session, "print(x)")["stdout"], "preserved\n");
    check();
    assert!(fixture.path("scope.json").exists(), "the next worker needs it");
    assert_eq!(end(server).0, Some(0));
    assert!(!fixture.path("scope.json").exists(), "the file is removed at exit");
}

#[test]
fn changed_scope_file_is_refused_by_the_next_worker() {
    let fixture = Fixture::new(User::Root);
    let scope = fixture.scope(&json!({"capabilities": ["code"]}));
    let mut process = command(&fixture.state, &["--scope", &scope, "--max-restarts", "1"], &[])
        .stdout(Stdio::piped())
        .spawn()
        .expect("process starts");
    let mut lines = BufReader::new(process.stdout.take().expect("stdout is piped")).lines();
    lines.next().expect("address is printed").expect("valid UTF-8");
    // `Server` ends the process when it is dropped.
    let mut server = Server { process, address: String::new(), state: Arc::clone(&fixture.state) };
    let first = worker(&fixture.state);
    fixture.scope(&json!({"capabilities": ["code", "command"]}));
    signal(first, Signal::KILL);
    wait_until("the supervisor does not exit", || server.process.try_wait().expect("wait for the process").is_some());
    let last = lines.next().expect("a reason is printed").expect("valid UTF-8");
    assert_eq!(server.process.wait().expect("process exits").code(), Some(75), "{last}");
    let report: Value = serde_json::from_str(&last).expect("valid JSON");
    let stderr = report["stderr"].to_string();
    assert!(stderr.contains("has changed since this endpoint was started"), "{last}");
}

#[test]
fn worker_does_not_start_without_its_scope_variable() {
    let fixture = Fixture::new(User::Root);
    let scope = fixture.scope(&json!({}));
    let mut command = User::Root.ringfence();
    command.args(["worker", "--port", "0", "--scope", &scope]);
    let stderr = fixture.failed_start(command);
    assert!(stderr.contains("RINGFENCE_SCOPE_FILE"), "{stderr}");
}
