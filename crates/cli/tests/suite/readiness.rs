//! A server reports ready, and `/health` is ok, only after the server has started a sandbox.
//!
//! The servers run in a separate user namespace whose `user.max_user_namespaces` is 0, so the limit of the
//! host does not change.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use ringfence_testkit::{Server, User, skip, wait_until};
use serde_json::Value;

use crate::BINARY;

const TIMEOUT: Duration = Duration::from_secs(20);

/// Runs ringfence where no sandbox can be created.
fn without_namespaces() -> Command {
    let mut command = Command::new("unshare");
    let limit = r#"echo 0 >/proc/sys/user/max_user_namespaces && exec "$@""#;
    command.args(["--user", "--map-root-user", "sh", "-c", limit, "sh", BINARY]);
    command
}

/// Records a skip if the tests cannot run.
fn is_unavailable(test: &str) -> bool {
    let reason = User::Root.unavailable();
    if let Some(reason) = &reason {
        skip(test, reason);
    }
    reason.is_some()
}

/// Allows the server to create namespaces again.
fn allow_namespaces(process: &Child) {
    let pid = process.id().to_string();
    let limit = "echo 1000 >/proc/sys/user/max_user_namespaces";
    let mut enter = Command::new("nsenter");
    enter.args(["--target", &pid, "--user", "--preserve-credentials", "sh", "-c", limit]);
    assert!(enter.status().expect("run nsenter").success());
}

/// Reads the lines of stderr.
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
    let state = std::sync::Arc::new(tempfile::tempdir().expect("create a directory"));
    let mut command = without_namespaces();
    command.args(["serve", "--port", "0"]).env("RINGFENCE_STATE_DIR", state.path());
    let mut process = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("start the server");
    let lines = lines(&mut process);
    let mut stderr = Vec::new();
    let address = loop {
        let line = lines.recv_timeout(TIMEOUT).unwrap_or_else(|error| panic!("{error}: {stderr:?}"));
        stderr.push(line.clone());
        if let Some(address) = line.split_once("http://").and_then(|(_, rest)| rest.strip_suffix("/mcp")) {
            break address.to_owned();
        }
    };
    let server = Server { process, address, state };
    let text = stderr.join("\n");
    assert!(text.contains("not ready: ") && text.contains("this host lacks user namespaces"), "{text}");
    assert!(text.contains("hint: `sudo sysctl user.max_user_namespaces"), "{text}");
    assert!(!text.contains("serving MCP at"), "{text}");
    let host = format!("Host: {}\r\n", server.address);
    let health = || {
        let (status, body) = server.http("GET /health", &host, "");
        (status, serde_json::from_str::<Value>(&body).expect("the body is JSON"))
    };
    let (status, body) = health();
    assert_eq!((status, &body["status"]), (503, &"down".into()), "{body}");
    let reason = body["reason"].as_str().unwrap_or_default();
    assert!(reason.contains("this host lacks user namespaces"), "{body}");
    let tools = server.request("tools/list", &serde_json::json!({}));
    assert!(tools["result"]["tools"].is_array(), "other requests are served: {tools}");

    allow_namespaces(&server.process);
    wait_until("the server did not recover", || health().0 == 200);
    let mut stderr = Vec::new();
    while !stderr.iter().any(|line: &String| line.contains("serving MCP at")) {
        stderr.push(lines.recv_timeout(TIMEOUT).unwrap_or_else(|error| panic!("{error}: {stderr:?}")));
    }
}

#[test]
fn health_is_ok_once_the_server_reports_ready() {
    let server = Server::start(&[], &[]);
    let host = format!("Host: {}\r\n", server.address);
    assert_eq!(server.http("GET /health", &host, "").0, 200);
}

#[test]
fn stdio_server_reports_that_it_cannot_create_sandboxes() {
    if is_unavailable("stdio_server_reports_that_it_cannot_create_sandboxes") {
        return;
    }
    let state = tempfile::tempdir().expect("create a directory");
    let mut command = without_namespaces();
    command.args(["serve", "--stdio"]).env("RINGFENCE_STATE_DIR", state.path());
    let mut process =
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("start the server");
    let lines = lines(&mut process);
    let not_ready = std::iter::from_fn(|| lines.recv_timeout(TIMEOUT).ok()).find(|line| line.contains("not ready: "));
    drop(process.stdin.take());
    process.wait().expect("wait for the server");
    assert!(not_ready.is_some_and(|line| line.contains("this host lacks user namespaces")));
}

#[test]
fn preflight_fails_with_the_reason_if_no_sandbox_can_be_created() {
    if is_unavailable("preflight_fails_with_the_reason_if_no_sandbox_can_be_created") {
        return;
    }
    let state = tempfile::tempdir().expect("create a directory");
    let mut command = without_namespaces();
    command.args(["up", "--port", "0", "--preflight-timeout-ms", "3000"]).env("RINGFENCE_STATE_DIR", state.path());
    let mut process = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("start the server");
    let (send, receive) = channel();
    let stdout = process.stdout.take().expect("stdout is piped");
    std::thread::spawn(move || send.send(std::io::read_to_string(stdout)));
    let stdout = receive.recv_timeout(TIMEOUT);
    if stdout.is_err() {
        // The worker ends with the supervisor.
        process.kill().expect("kill the supervisor");
    }
    let code = process.wait().expect("wait for the supervisor").code();
    let stdout = stdout.expect("the supervisor ends").expect("read stdout");
    assert_eq!(code, Some(75), "{stdout}");
    assert_eq!(stdout.lines().count(), 1, "the supervisor must not report ready: {stdout}");
    assert!(stdout.contains("this host lacks user namespaces") && !stdout.contains("\"tools\""), "{stdout}");
}
