//! What keeps a server answering: an upstream that always fails, calls that wait too long, an end in order, a state that
//! cannot be used.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use ringfence_testkit::{Who, skip};
use serde_json::{Value, json};

use crate::everyone::BINARY;
use crate::leases::{begin, eventually};
use crate::server::Server;

/// An MCP server over HTTP that says what it has, and hangs up on every call. Gives its port.
fn server_that_hangs_up() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || answer_some(stream));
        }
    });
    port
}

fn answer_some(stream: TcpStream) -> Option<()> {
    let mut reader = BufReader::new(stream);
    loop {
        let (mut length, mut line) = (0, String::new());
        while reader.read_line(&mut line).ok()? > 2 {
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().ok()?;
            }
            line.clear();
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        let message: Value = serde_json::from_slice(&body).unwrap_or_default();
        let result = match message["method"].as_str().unwrap_or_default() {
            "initialize" => json!({"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
                "serverInfo": {"name": "hangs-up", "version": "1"}}),
            "tools/list" => json!({"tools": [{"name": "work", "inputSchema": {"type": "object"}}]}),
            "ping" => json!({}),
            "tools/call" => return None,
            _ => Value::Null,
        };
        let (status, answer) = match (message.get("id"), result) {
            (Some(id), Value::Null) => {
                let error = json!({"code": -32601, "message": "no such method"});
                ("200 OK", json!({"jsonrpc": "2.0", "id": id, "error": error}).to_string())
            }
            (Some(id), result) => ("200 OK", json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string()),
            (None, _) if length > 0 => ("202 Accepted", String::new()),
            (None, _) => ("405 Method Not Allowed", String::new()),
        };
        let head = format!("HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}", answer.len());
        reader.get_mut().write_all(format!("{head}\r\n\r\n{answer}").as_bytes()).ok()?;
    }
}

#[test]
fn a_server_whose_calls_all_fail_is_spared_for_a_while_for_code_too() {
    let directory = tempfile::tempdir().expect("a directory");
    let config = directory.path().join("ringfence.toml");
    let url = format!("http://127.0.0.1:{}/mcp", server_that_hangs_up());
    std::fs::write(&config, format!("[servers.bad]\nurl = \"{url}\"\n")).expect("it is written");
    let server = Server::start(&["--config", config.to_str().expect("text")], &[]);
    let said = |answer: Value| answer["error"]["message"].as_str().unwrap_or_default().to_owned();
    for _ in 0..5 {
        let lost = said(server.call("bad__work", &json!({})));
        assert!(lost.contains("may have run"), "{lost}");
    }
    let spared = said(server.call("bad__work", &json!({})));
    assert!(spared.contains("the last 5 calls failed; the next is let through in"), "{spared}");
    let code = json!({"code": "await mcp_bad.work()", "servers": ["bad"]});
    let ran = server.call("run_python", &code)["result"].to_string();
    assert!(ran.contains("the last 5 calls failed; the next is let through in"), "{ran}");
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
    let session = begin(&server, "python", "x = 1");
    let sleep = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "execute_code",
        "arguments": {"code": "import time; time.sleep(2.9)", "session_id": session}}})
    .to_string();
    let busy = || {
        let told = server.call("get_sessions", &json!({"session_id": session}));
        told["result"]["structuredContent"]["sessions"][0]["status"] == "busy"
    };
    let mut streams = vec![server.send("POST /mcp", &sleep)];
    eventually("it does not start", busy);
    // One waits; the next is told, with a status of its own, when to ask again.
    streams.push(server.send("POST /mcp", &sleep));
    let headers = format!("Host: {}\r\nContent-Type: application/json\r\n", server.address);
    let mut refusal = (200, String::new());
    eventually("there is always room", || {
        let ping = json!({"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": {"name": "execute_code",
            "arguments": {"code": "1", "session_id": session, "timeout": 0.1}}});
        refusal = server.ask("POST /mcp", &headers, &ping.to_string());
        refusal.0 == 503
    });
    let error: Value = serde_json::from_str(&refusal.1).expect("JSON");
    assert_eq!((&error["id"], &error["error"]["code"]), (&json!(9), &json!(-32001)), "{error}");
    assert!(error["error"]["data"]["retry_after_ms"].as_u64().is_some_and(|wait| wait > 0), "{error}");
    let mut last = String::new();
    streams.pop().expect("the second").read_to_string(&mut last).expect("it is answered");
    assert!(last.contains("took longer than 4 s in all") && last.contains("server.request_timeout_s"), "{last}");
}

#[test]
fn sigterm_lets_a_call_end_and_begins_no_other() {
    let mut server = Server::start(&[], &[]);
    let session = begin(&server, "python", "x = 1");
    let code = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\nprint('done')";
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "execute_code",
        "arguments": {"code": code, "session_id": session}}});
    let mut running = server.send("POST /mcp", &call.to_string());
    eventually("it does not start", || {
        let told = server.call("get_sessions", &json!({"session_id": session}));
        told["result"]["structuredContent"]["sessions"][0]["status"] == "busy"
    });
    let pid = rustix::process::Pid::from_child(&server.process);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it lives");
    let headers = format!("Host: {}\r\n", server.address);
    eventually("it is healthy", || server.ask("GET /health", &headers, "").0 == 503);
    let (status, refusal) = server.ask("GET /v1/sessions", &headers, "");
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
    if let Some(reason) = Who::Plain.unavailable() {
        return skip("a_database_that_may_not_be_read", &reason);
    }
    let state = Arc::new(Who::Plain.directory());
    drop(Server::start_in(Who::Plain, Arc::clone(&state), &[], &[]));
    let database = state.path().join("ringfence.db");
    std::fs::set_permissions(&database, std::fs::Permissions::from_mode(0o000)).expect("it is ours");
    let mut command = Who::Plain.ringfence(Path::new(BINARY));
    command.env("RINGFENCE_STATE_DIR", state.path()).args(["serve", "--port", "0"]);
    let output = command.output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("ringfence.db cannot be used"), "{said}");
    assert!(said.contains("caused by: Permission denied") && said.contains("hint: "), "{said}");
}
