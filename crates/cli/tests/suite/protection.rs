//! Availability of a server: failing upstream servers, calls that wait too long, graceful shutdown, and an unreadable
//! database.

mod upstream;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use ringfence_testkit::{Server, User, skip, wait_until};
use serde_json::{Value, json};

use upstream::Upstream;

/// Starts a server with a configuration; returns it and the directory of the configuration.
fn start_with_config(config: &str, variables: &[(&str, &str)]) -> (Server, tempfile::TempDir) {
    let directory = tempfile::tempdir().expect("create a directory");
    let path = directory.path().join("ringfence.toml");
    std::fs::write(&path, config).expect("write the configuration");
    (Server::start(&["--config", path.to_str().expect("a UTF-8 path")], variables), directory)
}

/// Code that catches every interrupt, so that the session ends it only 3 s after its timeout.
const CATCH_INTERRUPTS: &str = "import time\nwhile True:\n    try: time.sleep(60)\n    except KeyboardInterrupt: pass";

fn terminate(server: &Server) {
    let pid = rustix::process::Pid::from_child(&server.process);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("terminate the server");
}

fn error_message(response: &Value) -> String {
    response["error"]["message"].as_str().unwrap_or_default().to_owned()
}

/// Sends a request that accepts an event stream; returns the response as a reader.
fn open_stream(server: &Server, request: &str, headers: &str, body: &str) -> BufReader<TcpStream> {
    let mut stream = TcpStream::connect(&server.address).expect("connect to the server");
    let head = format!(
        "{request} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\n{headers}Content-Length: {}\r\n\r\n",
        server.address,
        body.len()
    );
    stream.write_all(format!("{head}{body}").as_bytes()).expect("send the request");
    BufReader::new(stream)
}

/// Reads up to the next line that contains a text; returns that line.
fn line_with(reader: &mut BufReader<TcpStream>, text: &str) -> String {
    let mut seen = String::new();
    loop {
        let start = seen.len();
        assert!(reader.read_line(&mut seen).expect("read a line") > 0, "{text} is not in {seen}");
        if seen[start..].contains(text) {
            return seen[start..].trim_end().to_owned();
        }
    }
}

/// Opens an MCP session; returns its `Mcp-Session-Id` header.
fn open_mcp_session(server: &Server, version: &str) -> String {
    let initialize = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": version,
        "capabilities": {"elicitation": {}}, "clientInfo": {"name": "test", "version": "1"}}});
    let mut reader = open_stream(server, "POST /mcp", "", &initialize.to_string());
    line_with(&mut reader, "mcp-session-id") + "\r\n"
}

#[test]
fn server_leaves_no_core_dump_with_its_secrets() {
    let server = Server::start(&[], &[]);
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", server.process.id())).expect("read the limits");
    let line = limits.lines().find(|line| line.starts_with("Max core file size")).expect("a limit");
    assert_eq!(line.split_whitespace().nth(4), Some("1"), "{line}");
}

#[test]
fn failing_calls_open_the_circuit_for_clients_and_code() {
    let upstream = Upstream::start();
    let alone = "[profiles.alone]\nservers = [\"bad\"]\nprefix = false\nown_tools = false\n";
    let (server, _config) = start_with_config(&(upstream.entry() + alone), &[]);
    for _ in 0..5 {
        let lost = error_message(&server.call("bad__work", &json!({})));
        assert!(lost.contains("may have run"), "{lost}");
    }
    let refused = error_message(&server.call("bad__work", &json!({})));
    assert!(refused.contains("the last 5 calls failed; the next call is allowed in"), "{refused}");
    let code = json!({"code": "await mcp_bad.work()", "servers": ["bad"]});
    let result = server.call("run_python", &code)["result"].to_string();
    assert!(result.contains("the last 5 calls failed; the next call is allowed in"), "{result}");
    // Opening an MCP session is not a call of the server.
    let initialize = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-06-18",
        "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}});
    let headers = format!("Host: {}\r\nContent-Type: application/json\r\n", server.address);
    let (status, response) = server.http("POST /mcp/alone", &headers, &initialize.to_string());
    assert!(status == 200 && response.contains("misbehaves"), "{response}");
}

#[test]
fn retried_call_from_code_counts_as_one_failure() {
    let mut upstream = Upstream::start();
    let (server, _config) = start_with_config(&upstream.entry(), &[]);
    wait_until("the server did not connect", || {
        server.request("tools/list", &json!({})).to_string().contains("bad__work")
    });
    upstream.stop();
    let code = json!({"code": "await mcp_bad.work()", "servers": ["bad"]});
    let result = server.call("run_python", &code)["result"].to_string();
    assert!(!result.contains("calls failed"), "{result}");
    for number in 2..=5 {
        let lost = error_message(&server.call("bad__work", &json!({})));
        assert!(lost.contains("has not run"), "{number}: {lost}");
    }
    let refused = error_message(&server.call("bad__work", &json!({})));
    assert!(refused.contains("the last 5 calls failed"), "{refused}");
}

#[test]
fn profile_with_a_single_disconnected_server_can_be_initialized() {
    let config = "[servers.off]\nurl = \"http://127.0.0.1:9/mcp\"\nenable = false\n\
        [profiles.alone]\nservers = [\"off\"]\nprefix = false\nown_tools = false\n";
    let (server, _config) = start_with_config(config, &[]);
    let initialize = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-06-18",
        "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}});
    let headers = format!("Host: {}\r\nContent-Type: application/json\r\n", server.address);
    let (status, response) = server.http("POST /mcp/alone", &headers, &initialize.to_string());
    let response: Value = serde_json::from_str(&response).expect("the body is JSON");
    assert_eq!((status, &response["result"]["serverInfo"]["name"]), (200, &json!("ringfence")), "{response}");
    assert_eq!(
        response["result"]["instructions"],
        "The server off is not connected now. Calls of its tools report the reason.",
        "{response}"
    );
}

#[test]
fn timeout_error_of_an_upstream_server_is_forwarded_unchanged() {
    let upstream = Upstream::start();
    let (server, _config) = start_with_config(&upstream.entry(), &[]);
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "bad__late"}}).to_string();
    let mut response = String::new();
    server.send("POST /mcp", &call).read_to_string(&mut response).expect("read the response");
    assert!(response.starts_with("HTTP/1.1 200 ") && !response.to_lowercase().contains("retry-after:"), "{response}");
    assert!(response.contains("\"code\":-32001") && response.contains("Request timed out"), "{response}");
}

#[test]
fn response_of_a_client_is_accepted_at_the_request_limit() {
    let upstream = Upstream::start();
    let (server, _config) = start_with_config(&upstream.entry(), &[("RINGFENCE_SERVER_MAX_CONCURRENT_REQUESTS", "1")]);
    let session = open_mcp_session(&server, "2025-06-18");
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "bad__ask"}});
    let mut events = open_stream(&server, "POST /mcp", &session, &call.to_string());
    let request = line_with(&mut events, "elicitation/create");
    let request: Value =
        serde_json::from_str(request.strip_prefix("data: ").expect("an event")).expect("the body is JSON");
    let headers = format!("Host: {}\r\nContent-Type: application/json\r\n{session}", server.address);
    let ping = json!({"jsonrpc": "2.0", "id": 2, "method": "ping"}).to_string();
    assert_eq!(server.http("POST /mcp", &headers, &ping).0, 503, "the call uses the only slot");
    let response =
        json!({"jsonrpc": "2.0", "id": request["id"], "result": {"action": "accept", "content": {"x": "blue"}}});
    let (status, body) = server.http("POST /mcp", &headers, &response.to_string());
    assert_eq!(status, 202, "{body}");
    line_with(&mut events, "blue");
}

#[test]
fn listening_clients_do_not_count_against_the_request_limit() {
    let upstream = Upstream::start();
    let (server, _config) = start_with_config(&upstream.entry(), &[("RINGFENCE_SERVER_MAX_CONCURRENT_REQUESTS", "2")]);
    let meta = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {}});
    let listen = json!({"jsonrpc": "2.0", "id": 1, "method": "subscriptions/listen",
        "params": {"_meta": meta, "notifications": {"toolsListChanged": true}}});
    let headers = "MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: subscriptions/listen\r\n";
    let mut subscriptions = Vec::new();
    for _ in 0..4 {
        let mut stream = open_stream(&server, "POST /mcp", headers, &listen.to_string());
        line_with(&mut stream, "notifications/subscriptions/acknowledged");
        subscriptions.push(stream);
    }
    assert_eq!(server.request("ping", &json!({}))["result"], json!({}));
}

#[test]
fn hosted_calls_end_at_the_request_timeout() {
    let upstream = Upstream::start();
    let times = [("RINGFENCE_SERVER_REQUEST_TIMEOUT_S", "2"), ("RINGFENCE_SESSIONS_MAX_TIMEOUT_S", "1")];
    let (server, _config) = start_with_config(&upstream.entry(), &times);
    let lost = server.call("bad__hang", &json!({}));
    assert!(error_message(&lost).contains("no response within 2 s; the call may have run"), "{lost}");
    assert_eq!(lost["error"]["data"]["context"]["rule"], "server.request_timeout_s", "{lost}");
}

#[test]
fn rest_calls_end_at_the_request_timeout() {
    let server =
        Server::start(&[], &[("RINGFENCE_SERVER_REQUEST_TIMEOUT_S", "2"), ("RINGFENCE_SESSIONS_MAX_TIMEOUT_S", "1")]);
    let session = server.create_session("python", "x = 1");
    let headers = format!("Host: {}\r\nContent-Type: application/json\r\n", server.address);
    let call = json!({"code": CATCH_INTERRUPTS}).to_string();
    let (status, body) = server.http(&format!("POST /v1/sessions/{session}/exec"), &headers, &call);
    assert!(status == 504 && body.contains("timed out after 2 s") && body.contains("may_have_run"), "{body}");
}

#[test]
fn shutdown_waits_for_a_disconnected_call_and_its_client_can_resume() {
    let server = Server::start(&[], &[]);
    let session = server.create_session("python", "x = 1");
    let mcp_session = open_mcp_session(&server, "2025-11-25");
    let code = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\nprint('done')";
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "execute_code",
        "arguments": {"code": code, "session_id": session, "timeout": 60}, "_meta": {"progressToken": "p"}}});
    let mut running = open_stream(&server, "POST /mcp", &mcp_session, &call.to_string());
    let event = line_with(&mut running, "id: ");
    line_with(&mut running, "notifications/progress");
    drop(running);
    let mut idle = Server::start(&[], &[]);
    idle.create_session("python", "x = 1");
    terminate(&server);
    let headers = format!("Host: {}\r\n", server.address);
    wait_until("the server did not start to shut down", || server.http("GET /health", &headers, "").0 == 503);
    // A server without a running call, which is terminated later, ends in the meantime.
    terminate(&idle);
    idle.process.wait().expect("wait for the idle server");
    let headers = format!("{mcp_session}Last-Event-ID: {}\r\n", event.trim_start_matches("id: "));
    let mut resumed = open_stream(&server, "GET /mcp", &headers, "");
    line_with(&mut resumed, "notifications/progress");
    server.create_file(&session, "go");
    line_with(&mut resumed, "done");
}

#[test]
fn queued_calls_are_limited_and_time_out() {
    let server = Server::start(
        &[],
        &[
            ("RINGFENCE_SERVER_REQUEST_TIMEOUT_S", "2"),
            ("RINGFENCE_SESSIONS_MAX_TIMEOUT_S", "1"),
            ("RINGFENCE_SESSIONS_MAX_QUEUED_CALLS", "1"),
        ],
    );
    let session = server.create_session("python", "x = 1");
    let endless = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "execute_code",
        "arguments": {"code": CATCH_INTERRUPTS, "session_id": session}}})
    .to_string();
    let is_busy = || {
        let info = server.call("get_sessions", &json!({"session_id": session}));
        info["result"]["structuredContent"]["sessions"][0]["status"] == "busy"
    };
    let mut streams = vec![server.send("POST /mcp", &endless)];
    wait_until("the call did not start", is_busy);
    // One call may wait in the queue; the next is refused with a time for the retry.
    streams.push(server.send("POST /mcp", &endless));
    let headers = format!("Host: {}\r\nContent-Type: application/json\r\n", server.address);
    let mut refusal = (200, String::new());
    wait_until("no call was refused", || {
        let call = json!({"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": {"name": "execute_code",
            "arguments": {"code": "1", "session_id": session, "timeout": 0.1}}});
        refusal = server.http("POST /mcp", &headers, &call.to_string());
        refusal.0 == 503
    });
    let error: Value = serde_json::from_str(&refusal.1).expect("the body is JSON");
    assert_eq!((&error["id"], &error["error"]["code"]), (&json!(9), &json!(-32001)), "{error}");
    assert!(error["error"]["data"]["retry_after_ms"].as_u64().is_some_and(|wait| wait > 0), "{error}");
    let mut last = String::new();
    streams.pop().expect("the second call").read_to_string(&mut last).expect("read the response");
    assert!(last.contains("timed out after 2 s") && last.contains("server.request_timeout_s"), "{last}");
}

#[test]
fn sigterm_lets_running_calls_finish_and_refuses_new_ones() {
    let mut server = Server::start(&[], &[]);
    let session = server.create_session("python", "x = 1");
    let code = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\nprint('done')";
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "execute_code",
        "arguments": {"code": code, "session_id": session}}});
    let mut running = server.send("POST /mcp", &call.to_string());
    wait_until("the call did not start", || {
        let info = server.call("get_sessions", &json!({"session_id": session}));
        info["result"]["structuredContent"]["sessions"][0]["status"] == "busy"
    });
    terminate(&server);
    let headers = format!("Host: {}\r\n", server.address);
    wait_until("the server did not start to shut down", || server.http("GET /health", &headers, "").0 == 503);
    let (status, refusal) = server.http("GET /v1/sessions", &headers, "");
    assert_eq!((status, refusal.contains("shutting down")), (503, true), "{refusal}");
    server.create_file(&session, "go");
    let mut response = String::new();
    running.read_to_string(&mut response).expect("read the response");
    assert!(response.contains("done"), "{response}");
    let status = server.process.wait().expect("wait for the server");
    assert!(status.success(), "{status}");
}

#[test]
fn unreadable_database_is_reported() {
    if let Some(reason) = User::Plain.unavailable() {
        return skip("unreadable_database_is_reported", &reason);
    }
    let state = Arc::new(User::Plain.directory());
    drop(Server::start_in(User::Plain, Arc::clone(&state), &[], &[]));
    let database = state.path().join("ringfence.db");
    std::fs::set_permissions(&database, std::fs::Permissions::from_mode(0o000)).expect("change the permissions");
    let mut command = User::Plain.ringfence();
    command.env("RINGFENCE_STATE_DIR", state.path()).args(["serve", "--port", "0"]);
    let output = command.output().expect("run the server");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && stderr.contains("ringfence.db cannot be used"), "{stderr}");
    assert!(stderr.contains("caused by: Permission denied") && stderr.contains("hint: "), "{stderr}");
}
