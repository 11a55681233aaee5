//! What keeps a server answering: an upstream that always fails, calls that wait too long, an end in order, a state that
//! cannot be used.

mod upstream;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use ringfence_testkit::{Server, User, skip, wait_until};
use serde_json::{Value, json};

use upstream::Upstream;

/// A server with a configuration, and the directory of that.
fn configured(config: &str, variables: &[(&str, &str)]) -> (Server, tempfile::TempDir) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("ringfence.toml");
    std::fs::write(&path, config).expect("it is written");
    (Server::start(&["--config", path.to_str().expect("text")], variables), directory)
}

fn said(answer: &Value) -> String {
    answer["error"]["message"].as_str().unwrap_or_default().to_owned()
}

/// A client that takes streams: what it has sent, and what comes back, line by line.
fn stream(server: &Server, request: &str, headers: &str, body: &str) -> BufReader<TcpStream> {
    let mut stream = TcpStream::connect(&server.address).expect("it listens");
    let head = format!(
        "{request} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\n{headers}Content-Length: {}\r\n\r\n",
        server.address,
        body.len()
    );
    stream.write_all(format!("{head}{body}").as_bytes()).expect("it reads");
    BufReader::new(stream)
}

/// The next line that has something in it.
fn line_with(reader: &mut BufReader<TcpStream>, what: &str) -> String {
    let mut seen = String::new();
    loop {
        let start = seen.len();
        assert!(reader.read_line(&mut seen).expect("it is text") > 0, "{what} is not in {seen}");
        if seen[start..].contains(what) {
            return seen[start..].trim_end().to_owned();
        }
    }
}

/// Opens a conversation; gives the header that names it.
fn opened(server: &Server, version: &str) -> String {
    let hello = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": version,
        "capabilities": {"elicitation": {}}, "clientInfo": {"name": "test", "version": "1"}}});
    let mut reader = stream(server, "POST /mcp", "", &hello.to_string());
    line_with(&mut reader, "mcp-session-id") + "\r\n"
}

#[test]
fn a_server_whose_calls_all_fail_is_spared_for_a_while_for_code_too() {
    let upstream = Upstream::start();
    let alone = "[profiles.alone]\nservers = [\"bad\"]\nprefix = false\nown_tools = false\n";
    let (server, _config) = configured(&(upstream.entry() + alone), &[]);
    for _ in 0..5 {
        let lost = said(&server.call("bad__work", &json!({})));
        assert!(lost.contains("may have run"), "{lost}");
    }
    let spared = said(&server.call("bad__work", &json!({})));
    assert!(spared.contains("the last 5 calls failed; the next call is allowed in"), "{spared}");
    let code = json!({"code": "await mcp_bad.work()", "servers": ["bad"]});
    let ran = server.call("run_python", &code)["result"].to_string();
    assert!(ran.contains("the last 5 calls failed; the next call is allowed in"), "{ran}");
    // Whoever opens a conversation with it calls nothing.
    let hello = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-06-18",
        "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}});
    let headers = format!("Host: {}\r\nContent-Type: application/json\r\n", server.address);
    let (status, answer) = server.http("POST /mcp/alone", &headers, &hello.to_string());
    assert!(status == 200 && answer.contains("misbehaves"), "{answer}");
}

#[test]
fn a_call_from_code_is_one_failure_however_often_it_is_tried() {
    let mut upstream = Upstream::start();
    let (server, _config) = configured(&upstream.entry(), &[]);
    wait_until("it does not connect", || server.request("tools/list", &json!({})).to_string().contains("bad__work"));
    upstream.go_away();
    let code = json!({"code": "await mcp_bad.work()", "servers": ["bad"]});
    let ran = server.call("run_python", &code)["result"].to_string();
    assert!(!ran.contains("calls failed"), "{ran}");
    for number in 2..=5 {
        let lost = said(&server.call("bad__work", &json!({})));
        assert!(lost.contains("has not run"), "{number}: {lost}");
    }
    let spared = said(&server.call("bad__work", &json!({})));
    assert!(spared.contains("the last 5 calls failed"), "{spared}");
}

#[test]
fn callers_who_give_up_open_the_circuit_of_a_server_that_hangs() {
    let upstream = Upstream::start();
    let (server, _config) = configured(&upstream.entry(), &[]);
    wait_until("it does not connect", || server.request("tools/list", &json!({})).to_string().contains("bad__hang"));
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "bad__hang"}}).to_string();
    let waiting: Vec<_> = (0..5).map(|_| server.send("POST /mcp", &call)).collect();
    // Longer than the wait that is fair.
    std::thread::sleep(std::time::Duration::from_secs(32));
    drop(waiting);
    wait_until("it is called again and again", || {
        let mut one = server.send("POST /mcp", &call);
        one.set_read_timeout(Some(std::time::Duration::from_millis(500))).expect("it can be set");
        let mut answer = String::new();
        let _ = one.read_to_string(&mut answer);
        answer.contains("the last 5 calls failed")
    });
}

#[test]
fn a_sole_server_that_is_not_there_does_not_keep_this_one_from_answering() {
    let config = "[servers.off]\nurl = \"http://127.0.0.1:9/mcp\"\nenable = false\n\
        [profiles.alone]\nservers = [\"off\"]\nprefix = false\nown_tools = false\n";
    let (server, _config) = configured(config, &[]);
    let hello = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-06-18",
        "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}});
    let headers = format!("Host: {}\r\nContent-Type: application/json\r\n", server.address);
    let (status, answer) = server.http("POST /mcp/alone", &headers, &hello.to_string());
    let answer: Value = serde_json::from_str(&answer).expect("JSON");
    assert_eq!((status, &answer["result"]["serverInfo"]["name"]), (200, &json!("ringfence")), "{answer}");
    assert_eq!(
        answer["result"]["instructions"], "The server off is not connected now. Calls of its tools report the reason.",
        "{answer}"
    );
}

#[test]
fn an_error_of_another_server_is_not_taken_for_want_of_room() {
    let upstream = Upstream::start();
    let (server, _config) = configured(&upstream.entry(), &[]);
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "bad__late"}}).to_string();
    let mut answer = String::new();
    server.send("POST /mcp", &call).read_to_string(&mut answer).expect("it is answered");
    assert!(answer.starts_with("HTTP/1.1 200 ") && !answer.to_lowercase().contains("retry-after:"), "{answer}");
    assert!(answer.contains("\"code\":-32001") && answer.contains("Request timed out"), "{answer}");
}

#[test]
fn a_question_is_answered_although_the_server_is_full() {
    let upstream = Upstream::start();
    let (server, _config) = configured(&upstream.entry(), &[("RINGFENCE_SERVER_MAX_CONCURRENT_REQUESTS", "1")]);
    let session = opened(&server, "2025-06-18");
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "bad__ask"}});
    let mut asked = stream(&server, "POST /mcp", &session, &call.to_string());
    let question = line_with(&mut asked, "elicitation/create");
    let question: Value = serde_json::from_str(question.strip_prefix("data: ").expect("an event")).expect("JSON");
    let headers = format!("Host: {}\r\nContent-Type: application/json\r\n{session}", server.address);
    let ping = json!({"jsonrpc": "2.0", "id": 2, "method": "ping"}).to_string();
    assert_eq!(server.http("POST /mcp", &headers, &ping).0, 503, "the call is under way");
    let answer =
        json!({"jsonrpc": "2.0", "id": question["id"], "result": {"action": "accept", "content": {"x": "blue"}}});
    let (status, body) = server.http("POST /mcp", &headers, &answer.to_string());
    assert_eq!(status, 202, "{body}");
    line_with(&mut asked, "blue");
}

#[test]
fn clients_that_only_listen_take_no_place() {
    let upstream = Upstream::start();
    let (server, _config) = configured(&upstream.entry(), &[("RINGFENCE_SERVER_MAX_CONCURRENT_REQUESTS", "2")]);
    let meta = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {}});
    let listen = json!({"jsonrpc": "2.0", "id": 1, "method": "subscriptions/listen",
        "params": {"_meta": meta, "notifications": {"toolsListChanged": true}}});
    let headers = "MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: subscriptions/listen\r\n";
    let mut listening = Vec::new();
    for _ in 0..4 {
        let mut stream = stream(&server, "POST /mcp", headers, &listen.to_string());
        line_with(&mut stream, "notifications/subscriptions/acknowledged");
        listening.push(stream);
    }
    assert_eq!(server.request("ping", &json!({}))["result"], json!({}));
}

#[test]
fn hosted_calls_end_within_the_time_of_a_request() {
    let upstream = Upstream::start();
    let times = [("RINGFENCE_SERVER_REQUEST_TIMEOUT_S", "3"), ("RINGFENCE_SESSIONS_MAX_TIMEOUT_S", "2")];
    let (server, _config) = configured(&upstream.entry(), &times);
    let lost = server.call("bad__hang", &json!({}));
    assert!(said(&lost).contains("no response within 3 s; the call may have run"), "{lost}");
    assert_eq!(lost["error"]["data"]["context"]["rule"], "server.request_timeout_s", "{lost}");
}

#[test]
fn calls_over_rest_end_within_the_time_of_a_request() {
    let server =
        Server::start(&[], &[("RINGFENCE_SERVER_REQUEST_TIMEOUT_S", "4"), ("RINGFENCE_SESSIONS_MAX_TIMEOUT_S", "3")]);
    let session = server.create_session("python", "x = 1");
    let (path, sleep) =
        (format!("POST /v1/sessions/{session}/exec"), json!({"code": "import time; time.sleep(2.9)"}).to_string());
    let _first = server.send(&path, &sleep);
    wait_until("it does not start", || {
        let told = server.call("get_sessions", &json!({"session_id": session}));
        told["result"]["structuredContent"]["sessions"][0]["status"] == "busy"
    });
    let headers = format!("Host: {}\r\nContent-Type: application/json\r\n", server.address);
    let (status, told) = server.http(&path, &headers, &sleep);
    assert!(status == 504 && told.contains("timed out after 4 s") && told.contains("may_have_run"), "{told}");
}

#[test]
fn a_call_whose_connection_broke_is_waited_for_and_its_client_let_in_again() {
    let server = Server::start(&[], &[]);
    let session = server.create_session("python", "x = 1");
    let conversation = opened(&server, "2025-11-25");
    let code = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\nprint('done')";
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "execute_code",
        "arguments": {"code": code, "session_id": session, "timeout": 60}, "_meta": {"progressToken": "p"}}});
    let mut running = stream(&server, "POST /mcp", &conversation, &call.to_string());
    let event = line_with(&mut running, "id: ");
    line_with(&mut running, "notifications/progress");
    drop(running);
    let pid = rustix::process::Pid::from_child(&server.process);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it lives");
    let headers = format!("Host: {}\r\n", server.address);
    wait_until("it is healthy", || server.http("GET /health", &headers, "").0 == 503);
    // A while in which it would have ended.
    std::thread::sleep(std::time::Duration::from_secs(3));
    let last = format!("{conversation}Last-Event-ID: {}\r\n", event.trim_start_matches("id: "));
    let mut resumed = stream(&server, "GET /mcp", &last, "");
    line_with(&mut resumed, "notifications/progress");
    let socket = std::fs::read_dir(server.state.path().join("servers")).expect("it is there").flatten().next();
    let mut operator = std::os::unix::net::UnixStream::connect(socket.expect("a socket").path()).expect("it listens");
    let put = format!("PUT /v1/sessions/{session}/files/go HTTP/1.1\r\nHost: x\r\nConnection: close\r\n");
    operator.write_all(format!("{put}Content-Length: 0\r\n\r\n").as_bytes()).expect("it reads");
    line_with(&mut resumed, "done");
}

#[test]
fn a_call_that_waits_too_long_for_its_turn_is_told() {
    let server = Server::start(
        &[],
        &[
            ("RINGFENCE_SERVER_REQUEST_TIMEOUT_S", "4"),
            ("RINGFENCE_SESSIONS_MAX_TIMEOUT_S", "3"),
            ("RINGFENCE_SESSIONS_MAX_QUEUED_CALLS", "1"),
        ],
    );
    let session = server.create_session("python", "x = 1");
    let sleep = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "execute_code",
        "arguments": {"code": "import time; time.sleep(2.9)", "session_id": session}}})
    .to_string();
    let busy = || {
        let told = server.call("get_sessions", &json!({"session_id": session}));
        told["result"]["structuredContent"]["sessions"][0]["status"] == "busy"
    };
    let mut streams = vec![server.send("POST /mcp", &sleep)];
    wait_until("it does not start", busy);
    // One waits; the next is told, with a status of its own, when to ask again.
    streams.push(server.send("POST /mcp", &sleep));
    let headers = format!("Host: {}\r\nContent-Type: application/json\r\n", server.address);
    let mut refusal = (200, String::new());
    wait_until("there is always room", || {
        let ping = json!({"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": {"name": "execute_code",
            "arguments": {"code": "1", "session_id": session, "timeout": 0.1}}});
        refusal = server.http("POST /mcp", &headers, &ping.to_string());
        refusal.0 == 503
    });
    let error: Value = serde_json::from_str(&refusal.1).expect("JSON");
    assert_eq!((&error["id"], &error["error"]["code"]), (&json!(9), &json!(-32001)), "{error}");
    assert!(error["error"]["data"]["retry_after_ms"].as_u64().is_some_and(|wait| wait > 0), "{error}");
    let mut last = String::new();
    streams.pop().expect("the second").read_to_string(&mut last).expect("it is answered");
    assert!(last.contains("timed out after 4 s") && last.contains("server.request_timeout_s"), "{last}");
}

#[test]
fn sigterm_lets_a_call_end_and_begins_no_other() {
    let mut server = Server::start(&[], &[]);
    let session = server.create_session("python", "x = 1");
    let code = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\nprint('done')";
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "execute_code",
        "arguments": {"code": code, "session_id": session}}});
    let mut running = server.send("POST /mcp", &call.to_string());
    wait_until("it does not start", || {
        let told = server.call("get_sessions", &json!({"session_id": session}));
        told["result"]["structuredContent"]["sessions"][0]["status"] == "busy"
    });
    let pid = rustix::process::Pid::from_child(&server.process);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it lives");
    let headers = format!("Host: {}\r\n", server.address);
    wait_until("it is healthy", || server.http("GET /health", &headers, "").0 == 503);
    let (status, refusal) = server.http("GET /v1/sessions", &headers, "");
    assert_eq!((status, refusal.contains("shutting down")), (503, true), "{refusal}");
    let socket = std::fs::read_dir(server.state.path().join("servers")).expect("it is there").flatten().next();
    let mut operator = std::os::unix::net::UnixStream::connect(socket.expect("a socket").path()).expect("it listens");
    let put = format!("PUT /v1/sessions/{session}/files/go HTTP/1.1\r\nHost: x\r\nConnection: close\r\n");
    operator.write_all(format!("{put}Content-Length: 0\r\n\r\n").as_bytes()).expect("it reads");
    let mut answer = String::new();
    running.read_to_string(&mut answer).expect("it is answered");
    assert!(answer.contains("done"), "{answer}");
    let ended = server.process.wait().expect("it ends");
    assert!(ended.success(), "{ended}");
}

#[test]
fn a_database_that_may_not_be_read_is_said() {
    if let Some(reason) = User::Plain.unavailable() {
        return skip("a_database_that_may_not_be_read", &reason);
    }
    let state = Arc::new(User::Plain.directory());
    drop(Server::start_in(User::Plain, Arc::clone(&state), &[], &[]));
    let database = state.path().join("ringfence.db");
    std::fs::set_permissions(&database, std::fs::Permissions::from_mode(0o000)).expect("it is ours");
    let mut command = User::Plain.ringfence();
    command.env("RINGFENCE_STATE_DIR", state.path()).args(["serve", "--port", "0"]);
    let output = command.output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("ringfence.db cannot be used"), "{said}");
    assert!(said.contains("caused by: Permission denied") && said.contains("hint: "), "{said}");
}
