//! `serve --stdio --session NAME`: a default session that several processes use one after the other.

use std::io::Read as _;
use std::process::Stdio as StandardStream;

use ringfence_testkit::wait_until;
use serde_json::json;

use super::client::Stdio;
use super::{code, fields, session_id, text};

const NAMED: [&str; 2] = ["--session", "agent-1"];

#[test]
fn next_process_with_the_name_continues_the_session() {
    let state = tempfile::tempdir().expect("a directory");
    let mut first = Stdio::start_in(state.path(), &NAMED);
    let created = first.call("execute_code", &code("x = 41\nopen('a.txt', 'w').write('text')"));
    let node = first.call("execute_code", &json!({"code": "var y = 2", "template": "node"}));
    let other = first.call("execute_code", &json!({"code": "1", "session_id": "new"}));
    first.end();
    for round in 0..2 {
        let mut next = Stdio::start_in(state.path(), &NAMED);
        let result = next.call("execute_code", &code("x + 1, open('a.txt').read()"));
        let content = fields(&result);
        assert_eq!(
            (&content["result"], &content["session_created"], session_id(&result)),
            (&json!("(42, 'text')"), &json!(false), session_id(&created)),
            "{round}: {result}"
        );
        let result = next.call("execute_code", &json!({"code": "y", "template": "node"}));
        assert_eq!((&fields(&result)["result"], session_id(&result)), (&json!("2"), session_id(&node)), "{result}");
        let sessions = next.call("get_sessions", &json!({}));
        assert!(!sessions.to_string().contains(&session_id(&other)), "unnamed sessions have ended: {sessions}");
        next.end();
    }
    // Another name, no name, and another program do not find it.
    for options in [&["--session", "agent-2"][..], &[]] {
        let mut stranger = Stdio::start_in(state.path(), options);
        let result = stranger.call("execute_code", &code("'x' in globals()"));
        assert_eq!(fields(&result)["result"], "False", "{options:?}");
        stranger.call("stop_session", &json!({"session_id": session_id(&result)}));
        stranger.end();
    }
    let mut last = Stdio::start_in(state.path(), &NAMED);
    assert_eq!(text(&last.call("run_python", &code("x"))), "41", "nobody else has ended it");
    for session in [created, node] {
        last.call("stop_session", &json!({"session_id": session_id(&session)}));
    }
    last.end();
    let sockets = || std::fs::read_dir(state.path().join("launchers")).expect("read the directory").count();
    wait_until("a launcher was left", || sockets() == 0);
}

#[test]
fn named_session_survives_a_killed_process() {
    let state = tempfile::tempdir().expect("a directory");
    let mut first = Stdio::start_in(state.path(), &NAMED);
    first.call("execute_code", &code("x = 41"));
    first.process.kill().expect("kill the server");
    drop(first);
    let mut next = Stdio::start_in(state.path(), &NAMED);
    assert_eq!(fields(&next.call("execute_code", &code("x + 1")))["result"], "42");
    let session = next.call("execute_code", &code("1"));
    next.call("stop_session", &json!({"session_id": session_id(&session)}));
}

#[test]
fn process_waits_for_the_one_with_the_same_name() {
    let state = tempfile::tempdir().expect("a directory");
    let mut first = Stdio::start_in(state.path(), &NAMED);
    first.call("execute_code", &code("x = 41"));
    let path = state.path().to_owned();
    let next = std::thread::spawn(move || {
        let mut next = Stdio::start_in(&path, &NAMED);
        let result = next.call("execute_code", &code("x + 1"));
        next.call("stop_session", &json!({"session_id": session_id(&result)}));
        fields(&result)["result"].clone()
    });
    std::thread::sleep(std::time::Duration::from_millis(200));
    first.end();
    assert_eq!(next.join().expect("the next process runs"), "42");
}

#[test]
fn name_in_use_is_an_error() {
    let state = tempfile::tempdir().expect("a directory");
    let first = Stdio::start_in(state.path(), &NAMED);
    let mut command = Stdio::command(state.path(), &NAMED);
    let mut second = command.stderr(StandardStream::piped()).spawn().expect("start the server");
    let mut error = String::new();
    second.stderr.take().expect("stderr is piped").read_to_string(&mut error).expect("read stderr");
    assert!(!second.wait().expect("wait for the server").success());
    assert!(error.contains("another process uses the session name `agent-1`") && error.contains("hint"), "{error}");
    drop(first);
}

#[test]
fn name_is_checked_and_only_for_stdio() {
    let state = tempfile::tempdir().expect("a directory");
    let long = "x".repeat(65);
    for name in ["", "../a", "a b", "ä", &long] {
        let mut command = Stdio::command(state.path(), &["--session", name]);
        let output = command.stderr(StandardStream::piped()).output().expect("run ringfence");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains("--session"), "{name:?}: {output:?}");
    }
    for (options, named) in [(&["--session", "a"][..], "--stdio"), (&["--session", "a", "--port", "0"], "--port")] {
        let mut http = std::process::Command::new(crate::BINARY);
        let output = http.arg("serve").args(options).output().expect("run ringfence");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains(named), "{output:?}");
    }
}
