//! `ringfence serve` over HTTP: responses, refused clients, and clean-up at exit.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use crate::BINARY;
use ringfence_testkit::Server;

#[test]
fn request_without_initialization_gets_a_response() {
    let server = Server::start(&[], &[]);
    let headers = format!("Host: {}\r\nContent-Type: application/json\r\n", server.address);
    let call =
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"execute_code","arguments":{"code":"6*7"}}}"#;
    let (status, body) = server.http("POST /mcp", &headers, call);
    assert_eq!(status, 200, "{body}");
    let response: serde_json::Value = serde_json::from_str(&body).expect("valid JSON");
    assert_eq!(response["result"]["structuredContent"]["result"], "42", "{body}");
    let (status, body) = server.http("GET /health", &headers, "");
    assert_eq!((status, body.contains("ok")), (200, true), "{body}");
    let unknown = call.replace("\"code\"", "\"session_id\":\"session-0\",\"code\"");
    let (_, body) = server.http("POST /mcp", &headers, &unknown);
    let response: serde_json::Value = serde_json::from_str(&body).expect("valid JSON");
    assert_eq!(response["error"]["data"]["error_code"], "SESSION_NOT_FOUND", "{body}");
}

#[test]
fn foreign_origins_and_wrong_tokens_are_refused() {
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
fn listening_on_all_interfaces_without_a_token_is_refused() {
    let output =
        Command::new(BINARY).args(["serve", "--host", "0.0.0.0", "--port", "0"]).output().expect("command runs");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{text}");
    assert!(text.contains("refusing to listen on 0.0.0.0:0 without a token") && text.contains("hint:"), "{text}");
}

#[test]
fn listening_on_all_interfaces_with_a_short_token_is_refused() {
    // A server that listens despite this would not exit.
    let mut command = Command::new("/usr/bin/timeout");
    command.args(["20", BINARY, "serve", "--host", "0.0.0.0", "--port", "0"]);
    command.env("RINGFENCE_AUTH_TOKEN", "fifteen-bytes--");
    let output = command.output().expect("command runs");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{text}");
    assert!(text.contains("has fewer than 16 bytes") && text.contains("hint:"), "{text}");
    assert!(!text.contains("fifteen"), "{text}");
}

#[test]
fn sandboxes_end_with_their_server() {
    let marker = format!("server-ends-{}", std::process::id());
    let call = serde_json::json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {
        "name": "execute_command", "arguments": {"command": format!("(trap '' TERM INT HUP; sh -c 'while :; do sleep 1; done' {marker}) >/dev/null 2>&1 & echo up")}}});
    for kill in [false, true] {
        let groups = ringfence_testkit::HostSnapshot::take().cgroups;
        let mut server = Server::start(&[], &[("RINGFENCE_SESSIONS_LEASE_S", "1")]);
        let headers = format!("Host: {}\r\nContent-Type: application/json\r\n", server.address);
        let (_, body) = server.http("POST /mcp", &headers, &call.to_string());
        assert!(body.contains("up"), "{body}");
        // The command starts the daemon in the background, and may end before the daemon is visible.
        ringfence_testkit::wait_until("the daemon does not start", || ringfence_testkit::process::is_running(&marker));
        let launcher_prefix = format!("ringfence-{}-", launcher_of(&server));
        if kill {
            server.process.kill().expect("process is alive");
        }
        drop(server);
        // A server that exits normally removes its cgroups. Cgroups from before and those of other tests do not count.
        let has_cgroup = || {
            ringfence_testkit::HostSnapshot::take()
                .cgroups
                .difference(&groups)
                .any(|path| path.contains(&launcher_prefix))
        };
        assert!(kill || !has_cgroup(), "a cgroup remains");
        ringfence_testkit::wait_until("a process of a session remains", || {
            !ringfence_testkit::process::is_running(&marker)
        });
    }
}

#[test]
fn closed_log_pipe_does_not_prevent_shutdown() {
    let state = tempfile::tempdir().expect("directory is created");
    let mut command = Command::new(BINARY);
    command.args(["serve", "--port", "0"]).env("RINGFENCE_STATE_DIR", state.path());
    let mut process = command.stderr(Stdio::piped()).spawn().expect("process starts");
    let mut log = BufReader::new(process.stderr.take().expect("stderr is piped"));
    log.read_line(&mut String::new()).expect("address is printed");
    drop(log);
    let _ = rustix::process::kill_process(rustix::process::Pid::from_child(&process), rustix::process::Signal::TERM);
    ringfence_testkit::wait_until("the server does not exit", || matches!(process.try_wait(), Ok(Some(_))));
    assert!(process.wait().expect("process exits").success());
}

/// Returns the process ID of a server's launcher, which is part of the names of its sandboxes' cgroups.
fn launcher_of(server: &Server) -> String {
    let pid = server.process.id();
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("process is alive").flatten();
    let children =
        tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok()).collect::<String>();
    children.split_whitespace().next().expect("a launcher").to_owned()
}

#[test]
fn hangup_ends_the_server_and_its_sandboxes() {
    // The test runner may ignore SIGHUP, which children inherit.
    let mut command = std::process::Command::new("env");
    command.args(["--default-signal=HUP", crate::BINARY]);
    let mut server = Server::start_by(command);
    server.create_session("python", "pass");
    let processes = ringfence_testkit::process::descendants(server.process.id());
    rustix::process::kill_process(rustix::process::Pid::from_child(&server.process), rustix::process::Signal::HUP)
        .expect("process is alive");
    ringfence_testkit::wait_until("the server does not exit", || {
        server.process.try_wait().expect("child process").is_some()
    });
    assert!(server.process.wait().expect("process exits").success());
    ringfence_testkit::wait_until("a process remains", || {
        !processes.iter().any(|pid| ringfence_testkit::process::is_alive(*pid))
    });
}

#[test]
fn missing_volume_is_reported_at_start() {
    let (state, host) =
        (tempfile::tempdir().expect("directory is created"), tempfile::tempdir().expect("directory is created"));
    let mut command = std::process::Command::new(crate::BINARY);
    command.args(["serve", "--port", "0", "--volume"]).arg(format!("{}/nope:/x", host.path().display()));
    let output = command.env("RINGFENCE_STATE_DIR", state.path()).output().expect("command runs");
    assert!(!output.status.success());
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        stderr.contains("cannot mount the volume ") && stderr.contains("/nope\n") && stderr.contains("hint:"),
        "{stderr}"
    );
}
