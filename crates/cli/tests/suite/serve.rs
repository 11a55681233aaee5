//! `ringfence serve` over HTTP: what it answers, whom it refuses, what its end leaves.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use crate::BINARY;
use ringfence_testkit::Server;

#[test]
fn a_bare_request_is_answered() {
    let server = Server::start(&[], &[]);
    let headers = format!("Host: {}\r\nContent-Type: application/json\r\n", server.address);
    let call =
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"execute_code","arguments":{"code":"6*7"}}}"#;
    let (status, body) = server.http("POST /mcp", &headers, call);
    assert_eq!(status, 200, "{body}");
    let answer: serde_json::Value = serde_json::from_str(&body).expect("plain JSON");
    assert_eq!(answer["result"]["structuredContent"]["result"], "42", "{body}");
    let (status, body) = server.http("GET /health", &headers, "");
    assert_eq!((status, body.contains("ok")), (200, true), "{body}");
    let unknown = call.replace("\"code\"", "\"session_id\":\"session-0\",\"code\"");
    let (_, body) = server.http("POST /mcp", &headers, &unknown);
    let answer: serde_json::Value = serde_json::from_str(&body).expect("plain JSON");
    assert_eq!(answer["error"]["data"]["error_code"], "SESSION_NOT_FOUND", "{body}");
}

#[test]
fn a_web_page_and_a_stranger_are_refused() {
    let server = Server::start(&[], &[("RINGFENCE_AUTH_TOKEN", "a-long-secret")]);
    let list = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;
    let json = "Content-Type: application/json\r\n";
    let token = "Authorization: Bearer a-long-secret\r\n";
    let host = format!("Host: {}\r\n", server.address);
    for (headers, expected) in [
        (format!("{host}{json}{token}"), 200),
        (format!("{host}{json}"), 401),
        (format!("{host}{json}Authorization: Bearer a-long-secreT\r\n"), 401),
        (format!("Host: evil.example\r\n{json}{token}"), 403),
        (format!("{host}{json}{token}Origin: http://evil.example\r\n"), 403),
    ] {
        assert_eq!(server.http("POST /mcp", &headers, list).0, expected, "{headers}");
    }
}

#[test]
fn listening_openly_without_a_token_is_refused() {
    let output = Command::new(BINARY).args(["serve", "--host", "0.0.0.0", "--port", "0"]).output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{text}");
    assert!(text.contains("refusing to listen on 0.0.0.0:0 without a token") && text.contains("hint:"), "{text}");
}

#[test]
fn listening_openly_with_a_short_token_is_refused() {
    // A server that listens after all would not end.
    let mut command = Command::new("/usr/bin/timeout");
    command.args(["20", BINARY, "serve", "--host", "0.0.0.0", "--port", "0"]);
    command.env("RINGFENCE_AUTH_TOKEN", "fifteen-bytes--");
    let output = command.output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{text}");
    assert!(text.contains("has fewer than 16 bytes") && text.contains("hint:"), "{text}");
    assert!(!text.contains("fifteen"), "{text}");
}

#[test]
fn the_end_of_the_server_is_the_end_of_its_sandboxes() {
    let word = format!("server-ends-{}", std::process::id());
    let call = serde_json::json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {
        "name": "execute_command", "arguments": {"command": format!("(trap '' TERM INT HUP; sh -c 'while :; do sleep 1; done' {word}) >/dev/null 2>&1 & echo up")}}});
    for kill in [false, true] {
        let groups = ringfence_testkit::HostSnapshot::take().cgroups;
        let mut server = Server::start(&[], &[("RINGFENCE_SESSIONS_LEASE_S", "1")]);
        let headers = format!("Host: {}\r\nContent-Type: application/json\r\n", server.address);
        let (_, body) = server.http("POST /mcp", &headers, &call.to_string());
        assert!(body.contains("up"), "{body}");
        // It is started in the background of the command, which may end before it is to be seen.
        ringfence_testkit::wait_until("the daemon does not start", || ringfence_testkit::process::is_running(&word));
        let own = format!("ringfence-{}-", launcher_of(&server));
        if kill {
            server.process.kill().expect("it lives");
        }
        drop(server);
        // A group that was there neither before nor is another test's: that of a server which ended in order.
        let launcher_left =
            || ringfence_testkit::HostSnapshot::take().cgroups.difference(&groups).any(|path| path.contains(&own));
        assert!(kill || !launcher_left(), "a cgroup is left");
        ringfence_testkit::wait_until("a process of a session is left", || {
            !ringfence_testkit::process::is_running(&word)
        });
    }
}

#[test]
fn a_server_whose_log_nobody_reads_still_ends_when_told() {
    let state = tempfile::tempdir().expect("a directory");
    let mut command = Command::new(BINARY);
    command.args(["serve", "--port", "0"]).env("RINGFENCE_STATE_DIR", state.path());
    let mut process = command.stderr(Stdio::piped()).spawn().expect("it starts");
    let mut log = BufReader::new(process.stderr.take().expect("stderr is piped"));
    log.read_line(&mut String::new()).expect("it says where it listens");
    drop(log);
    let _ = rustix::process::kill_process(rustix::process::Pid::from_child(&process), rustix::process::Signal::TERM);
    ringfence_testkit::wait_until("the server does not end", || matches!(process.try_wait(), Ok(Some(_))));
    assert!(process.wait().expect("it has ended").success());
}

/// The helper process of a server, whose number its sandboxes' groups carry.
fn launcher_of(server: &Server) -> String {
    let pid = server.process.id();
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it lives").flatten();
    let children =
        tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok()).collect::<String>();
    children.split_whitespace().next().expect("it has a launcher").to_owned()
}

#[test]
fn a_server_whose_terminal_is_gone_ends_with_its_sandboxes() {
    // Whoever runs the tests may have been started not to mind.
    let mut command = std::process::Command::new("env");
    command.args(["--default-signal=HUP", crate::BINARY]);
    let mut server = Server::start_by(command);
    server.create_session("python", "pass");
    let processes = ringfence_testkit::process::descendants(server.process.id());
    rustix::process::kill_process(rustix::process::Pid::from_child(&server.process), rustix::process::Signal::HUP)
        .expect("it lives");
    ringfence_testkit::wait_until("it goes on", || server.process.try_wait().expect("it is ours").is_some());
    assert!(server.process.wait().expect("it ended").success());
    ringfence_testkit::wait_until("a process is left", || {
        !processes.iter().any(|pid| ringfence_testkit::process::is_alive(*pid))
    });
}

#[test]
fn a_volume_that_is_not_there_is_told_at_the_start() {
    let (state, host) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
    let mut command = std::process::Command::new(crate::BINARY);
    command.args(["serve", "--port", "0", "--volume"]).arg(format!("{}/nope:/x", host.path().display()));
    let refused = command.env("RINGFENCE_STATE_DIR", state.path()).output().expect("it runs");
    assert!(!refused.status.success());
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("cannot mount the volume ") && said.contains("/nope\n") && said.contains("hint:"), "{said}");
}
