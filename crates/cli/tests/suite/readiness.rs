//! A server reports ready, and `/health` is ok, only after the server has started a sandbox.
//!
//! The servers run in a user namespace of their own whose `user.max_user_namespaces` is 0: the limit of the host stays.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use ringfence_testkit::{Server, User, skip, wait_until};
use serde_json::Value;

use crate::BINARY;

const TIMEOUT: Duration = Duration::from_secs(20);

/// ringfence where no sandbox can be made.
fn without_namespaces() -> Command {
    let mut command = Command::new("unshare");
    let limit = r#"echo 0 >/proc/sys/user/max_user_namespaces && exec "$@""#;
    command.args(["--user", "--map-root-user", "sh", "-c", limit, "sh", BINARY]);
    command
}

fn is_unavailable(test: &str) -> bool {
    let reason = User::Root.unavailable();
    if let Some(reason) = &reason {
        skip(test, reason);
    }
    reason.is_some()
}

/// Lets the server make namespaces again.
fn allow_namespaces(process: &Child) {
    let pid = process.id().to_string();
    let limit = "echo 1000 >/proc/sys/user/max_user_namespaces";
    let mut enter = Command::new("nsenter");
    enter.args(["--target", &pid, "--user", "--preserve-credentials", "sh", "-c", limit]);
    assert!(enter.status().expect("it runs").success());
}

fn lines(process: &mut Child) -> Receiver<String> {
    let (send, lines) = channel();
    let stderr = BufReader::new(process.stderr.take().expect("stderr is piped"));
    std::thread::spawn(move || stderr.lines().map_while(Result::ok).try_for_each(|line| send.send(line)));
    lines
}

#[test]
fn server_without_sandboxes_is_not_ready_and_recovers() {
    if is_unavailable("server_without_sandboxes_is_not_ready_and_recovers") {
        return;
    }
    let state = std::sync::Arc::new(tempfile::tempdir().expect("a directory"));
    let mut command = without_namespaces();
    command.args(["serve", "--port", "0"]).env("RINGFENCE_STATE_DIR", state.path());
    let mut process = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts");
    let lines = lines(&mut process);
    let mut said = Vec::new();
    let address = loop {
        let line = lines.recv_timeout(TIMEOUT).unwrap_or_else(|error| panic!("{error}: {said:?}"));
        said.push(line.clone());
        if let Some(address) = line.split_once("http://").and_then(|(_, rest)| rest.strip_suffix("/mcp")) {
            break address.to_owned();
        }
    };
    let server = Server { process, address, state };
    let text = said.join("\n");
    assert!(text.contains("not ready: ") && text.contains("this host lacks user namespaces"), "{text}");
    assert!(text.contains("hint: `sudo sysctl user.max_user_namespaces"), "{text}");
    assert!(!text.contains("serving MCP at"), "{text}");
    let host = format!("Host: {}\r\n", server.address);
    let health = || {
        let (status, body) = server.http("GET /health", &host, "");
        (status, serde_json::from_str::<Value>(&body).expect("it is JSON"))
    };
    let (status, body) = health();
    assert_eq!((status, &body["status"]), (503, &"down".into()), "{body}");
    let reason = body["reason"].as_str().unwrap_or_default();
    assert!(reason.contains("this host lacks user namespaces"), "{body}");
    let tools = server.request("tools/list", &serde_json::json!({}));
    assert!(tools["result"]["tools"].is_array(), "other requests are served: {tools}");

    allow_namespaces(&server.process);
    wait_until("it does not recover", || health().0 == 200);
    let mut said = Vec::new();
    while !said.iter().any(|line: &String| line.contains("serving MCP at")) {
        said.push(lines.recv_timeout(TIMEOUT).unwrap_or_else(|error| panic!("{error}: {said:?}")));
    }
}

#[test]
fn health_is_ok_once_the_server_says_that_it_is_ready() {
    let server = Server::start(&[], &[]);
    let host = format!("Host: {}\r\n", server.address);
    assert_eq!(server.http("GET /health", &host, "").0, 200);
}

#[test]
fn stdio_server_without_sandboxes_says_so() {
    if is_unavailable("stdio_server_without_sandboxes_says_so") {
        return;
    }
    let state = tempfile::tempdir().expect("a directory");
    let mut command = without_namespaces();
    command.args(["serve", "--stdio"]).env("RINGFENCE_STATE_DIR", state.path());
    let mut process =
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts");
    let lines = lines(&mut process);
    let said = std::iter::from_fn(|| lines.recv_timeout(TIMEOUT).ok()).find(|line| line.contains("not ready: "));
    drop(process.stdin.take());
    process.wait().expect("it ends");
    assert!(said.is_some_and(|line| line.contains("this host lacks user namespaces")));
}

#[test]
fn preflight_fails_with_the_reason_where_no_sandbox_can_be_made() {
    if is_unavailable("preflight_fails_with_the_reason_where_no_sandbox_can_be_made") {
        return;
    }
    let state = tempfile::tempdir().expect("a directory");
    let mut command = without_namespaces();
    command.args(["up", "--port", "0", "--preflight-timeout-ms", "3000"]).env("RINGFENCE_STATE_DIR", state.path());
    let mut process = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("it starts");
    let (send, told) = channel();
    let stdout = process.stdout.take().expect("stdout is piped");
    std::thread::spawn(move || send.send(std::io::read_to_string(stdout)));
    let told = told.recv_timeout(TIMEOUT);
    if told.is_err() {
        // Its worker ends with it.
        process.kill().expect("it can be killed");
    }
    let code = process.wait().expect("it ends").code();
    let told = told.expect("it gives up").expect("it is text");
    assert_eq!(code, Some(75), "{told}");
    assert_eq!(told.lines().count(), 1, "it never says that it is ready: {told}");
    assert!(told.contains("this host lacks user namespaces") && !told.contains("\"tools\""), "{told}");
}
