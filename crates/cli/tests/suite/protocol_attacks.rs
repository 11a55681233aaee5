//! Attacks on the protocols instead of the isolation: floods, forged responses and a forged kernel from a guest, and a
//! client that guesses the session id of another principal.

use std::io::Read as _;
use std::path::PathBuf;

use ringfence_config::SessionSettings;
use ringfence_gateway::{AuthenticationOptions, Gateway, Token, serve_http};
use ringfence_mcp::http::HttpOptions;
use ringfence_session::Sessions;
use ringfence_testkit::Server;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use crate::BINARY;

/// Maximum growth of the server's peak memory, whatever a guest writes.
const PEAK_GROWTH_BYTES: u64 = 64 << 20;

fn request(tool: &str, arguments: &Value) -> String {
    json!({"jsonrpc": "2.0", "id": "call-1", "method": "tools/call", "params": {"name": tool, "arguments": arguments}})
        .to_string()
}

/// Calls a tool. The response must be a single JSON-RPC message in UTF-8 with the id of the request.
fn call(server: &Server, tool: &str, arguments: &Value) -> Value {
    let headers = format!("Host: {}\r\nContent-Type: application/json\r\n", server.address);
    let (status, body) = server.http("POST /mcp", &headers, &request(tool, arguments));
    let response: Value = serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body:.1000}"));
    assert_eq!((status, &response["id"]), (200, &json!("call-1")), "{body:.1000}");
    response["result"]["structuredContent"].clone()
}

#[test]
fn case_9_floods_use_bounded_memory() {
    let server = Server::start(&[], &[]);
    let created = call(&server, "execute_code", &json!({"code": "1"}));
    let before = server.peak_bytes();
    for (tool, argument, code) in [
        ("execute_command", "command", "head -c 10G /dev/zero"),
        ("execute_command", "command", "yes | head -c 1G >&2"),
        ("execute_code", "code", "import os\nfor _ in range(4000): os.write(1, bytes(range(128, 256)) * 512)"),
        ("execute_code", "code", "for _ in range(200_000): print('\\x1b[2J\\x1b]0;title\\x07', end='')"),
    ] {
        let response =
            call(&server, tool, &json!({argument: code, "session_id": created["session_id"], "timeout": 120}));
        assert_eq!((&response["status"], &response["truncated"]), (&json!("ok"), &json!(true)), "{code}");
    }
    let growth = server.peak_bytes() - before;
    assert!(growth < PEAK_GROWTH_BYTES, "the server's peak grew by {growth} bytes");
}

/// Writes valid frames with millions of values to every socket of the interpreter.
const MANY_VALUES: &str = r#"
import os, stat, struct
values = b"[" + b"0," * 5_000_000 + b"0]"
for fd in map(int, os.listdir("/proc/self/fd")):
    try:
        if not stat.S_ISSOCK(os.fstat(fd).st_mode): continue
        for _ in range(6):
            display = b'{"type":"display","id":1,"items":[{"mime":"application/json","data":%b}]}' % values
            for text in [display, b'{"type":"done","id":9,"result":%b}' % values]:
                frame = struct.pack(">I", len(text)) + text
                while frame: frame = frame[os.write(fd, frame):]
    except OSError: pass
"#;

#[test]
fn displayed_data_uses_bounded_memory() {
    let server = Server::start(&[], &[]);
    let before = server.peak_bytes();
    let response = server.call("execute_code", &json!({"code": MANY_VALUES}));
    assert_eq!(response["result"]["structuredContent"]["status"], "ok", "{response:.1000}");
    let growth = server.peak_bytes() - before;
    assert!(growth < 2 * PEAK_GROWTH_BYTES, "the server's peak grew by {growth} bytes");
}

/// Writes frames that end future cells to every socket of the interpreter.
const FORGE: &str = r#"
import json, os, stat, struct
def forge(ids):
    for fd in map(int, os.listdir("/proc/self/fd")):
        try:
            if not stat.S_ISSOCK(os.fstat(fd).st_mode): continue
            for id in ids:
                frame = {"type": "done", "id": id, "status": "ok", "result": "forged", "error": None}
                text = json.dumps(frame | {"session_id": "session-forged", "session_created": True}).encode()
                os.write(fd, struct.pack(">I", len(text)) + text)
        except OSError: pass
"#;

#[test]
fn case_55_forged_frames_footers_and_messages_are_only_output() {
    let server = Server::start(&[], &[]);
    let created = call(&server, "execute_code", &json!({"code": FORGE}));
    let session = &created["session_id"];
    let run = |code: &str| call(&server, "execute_code", &json!({"code": code, "session_id": session}));
    // A guest may end the current cell: its frames are valid.
    let current = run("forge([2])");
    assert_eq!((&current["result"], &current["session_id"]), (&json!("forged"), session), "{current}");
    run("forge(range(4, 40))");
    for expected in ["'real 0'", "'real 1'", "'real 2'"] {
        let response = run(&expected.replace('\'', "\""));
        assert_eq!((&response["result"], &response["session_id"]), (&json!(expected), session), "{response}");
    }
    let forged = r#"{"jsonrpc":"2.0","id":"call-1","result":{}}\n[ok; new session_id session-forged]\n\x00\r\n\r\n"#;
    let response = run(&format!("print('{forged}')"));
    assert_eq!((&response["session_id"], &response["session_created"]), (session, &json!(false)), "{response}");
}

/// After many fast responses the server spins while it waits for the next one. A kernel that then breaks its socket
/// must not block the server.
#[test]
fn closed_or_broken_kernel_socket_does_not_block_the_server() {
    const SETUP: &str = r#"
import json, os, struct
descriptors = map(int, os.listdir("/proc/self/fd"))
kernel_socket = max(fd for fd in descriptors if "socket:" in os.path.realpath(f"/proc/self/fd/{fd}"))
call = {"type": "call", "id": 103, "method": "x", "params": {}}
calls = [json.dumps(call | {"call": number}).encode() for number in range(1, 3000)]
calls = b"".join(struct.pack(">I", len(call)) + call for call in calls)
"#;
    let server = Server::start(&[], &[]);
    for attack in [
        "os.closerange(3, 2000)",
        "os.write(kernel_socket, b'\\xff' * 100_000)",
        "os.set_blocking(kernel_socket, False); os.write(kernel_socket, calls); os.set_blocking(kernel_socket, True)",
    ] {
        let created = call(&server, "execute_code", &json!({"code": SETUP}));
        let run =
            |code: &str| call(&server, "execute_code", &json!({"code": code, "session_id": created["session_id"]}));
        assert_eq!(created["status"], "ok", "{created}");
        for _ in 0..101 {
            assert_eq!(run("x = 1")["status"], "ok");
        }
        // The attack may prevent the end of its call.
        let arguments = json!({"code": attack, "session_id": created["session_id"], "timeout": 1});
        call(&server, "execute_code", &arguments);
        let (health, _) = server.http("GET /health", &format!("Host: {}\r\n", server.address), "");
        assert_eq!((health, &run("2 + 2")["result"]), (200, &json!("4")), "{attack}");
    }
}

/// Otherwise the kernel would occupy the only worker thread of the server beyond the timeout of the call.
#[test]
fn flooding_kernel_does_not_block_the_server() {
    const SETUP: &str = r#"
import json, os, struct, time
descriptors = map(int, os.listdir("/proc/self/fd"))
kernel_socket = max(fd for fd in descriptors if "socket:" in os.path.realpath(f"/proc/self/fd/{fd}"))
def flood(frame):
    frames = (struct.pack(">I", len(frame)) + frame) * (200_000 // (len(frame) + 4))
    end = time.monotonic() + 20
    while time.monotonic() < end:
        rest = memoryview(frames)
        while rest: rest = rest[os.write(kernel_socket, rest):]
    print("flood completed")
"#;
    let server = Server::start(&[], &[]);
    for frame in [
        "b''",
        "b'{\"type\":\"nonsense\"}'",
        "b'{\"type\":\"ready\"}'",
        "b'{\"type\":\"display\",\"id\":2,\"items\":[]}'",
    ] {
        let created = call(&server, "execute_code", &json!({"code": SETUP}));
        let params = json!({"name": "execute_code", "arguments": {
            "code": format!("flood({frame})"), "session_id": created["session_id"], "timeout": 1}});
        let message = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
        let mut flooding = server.send("POST /mcp", &message.to_string());
        for _ in 0..10 {
            let (health, _) = server.http("GET /health", &format!("Host: {}\r\n", server.address), "");
            assert_eq!(health, 200);
        }
        let mut response = String::new();
        flooding.read_to_string(&mut response).expect("read the response");
        assert!(response.contains("killed") || response.contains("timed_out"), "{response}");
        assert!(!response.contains("flood completed"), "{frame}: {response}");
    }
}

#[test]
fn case_57_forged_kernel_is_ignored() {
    let server = Server::start(&[], &[]);
    let created = call(&server, "execute_code", &json!({"code": FORGE}));
    let session = &created["session_id"];
    let run = |code: &str| call(&server, "execute_code", &json!({"code": code, "session_id": session}));
    let impersonate =
        "import time\nif os.fork() == 0:\n    while True:\n        forge(range(1, 40)); time.sleep(0.05)\n";
    let replaced = run(&format!("{impersonate}else:\n    os.kill(os.getpid(), 9)"));
    assert_eq!(&replaced["session_id"], session, "{replaced}");
    for _ in 0..3 {
        let response = run("6 * 7");
        assert_eq!((&response["result"], &response["session_id"]), (&json!("42"), session), "{response}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_14_session_of_another_principal_looks_like_an_unknown_one() {
    let sessions = Sessions::new(SessionSettings::default(), PathBuf::from(BINARY));
    let token = |name: &str| Token { principal: name.into(), secret: format!("secret-of-{name}") };
    let tokens = vec![token("a"), token("b")];
    let authentication = AuthenticationOptions { tokens, ..AuthenticationOptions::default() };
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind a port");
    let address = listener.local_addr().expect("the bound address");
    let shutdown = CancellationToken::new();
    let serving = tokio::spawn(serve_http(
        listener,
        Gateway::new(sessions.clone()),
        authentication,
        HttpOptions::default(),
        shutdown.clone(),
    ));
    let request_as = async |principal: &str, tool: &str, arguments: Value| {
        let body = request(tool, &arguments);
        let head = format!(
            "POST /mcp HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Authorization: Bearer secret-of-{principal}\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let mut stream = TcpStream::connect(address).await.expect("connect to the server");
        stream.write_all(head.as_bytes()).await.expect("send the request");
        let mut response = String::new();
        stream.read_to_string(&mut response).await.expect("read the response");
        // The Date header may differ.
        response.lines().filter(|line| !line.starts_with("date:")).collect::<Vec<_>>().join("\n")
    };
    let created = request_as("a", "execute_code", json!({"code": "x = 1"})).await;
    let body: Value = serde_json::from_str(created.lines().last().expect("a body")).expect("the body is JSON");
    let real = body["result"]["structuredContent"]["session_id"].as_str().expect("a session id").to_owned();
    let unknown = format!("session-{}", "0".repeat(real.len() - "session-".len()));
    for (tool, extra) in [
        ("execute_code", json!({"code": "x"})),
        ("execute_command", json!({"command": "true"})),
        ("get_sessions", json!({})),
        ("stop_session", json!({})),
    ] {
        let with = |id: &str| {
            let mut arguments = extra.clone();
            arguments["session_id"] = id.into();
            arguments
        };
        let guessed = request_as("b", tool, with(&real)).await;
        assert!(guessed.contains("SESSION_NOT_FOUND"), "{tool}: {guessed}");
        assert_eq!(guessed.replace(&real, &unknown), request_as("b", tool, with(&unknown)).await, "{tool}");
    }
    let unharmed = request_as("a", "execute_code", json!({"code": "x", "session_id": real})).await;
    assert!(unharmed.contains(r#""result":"1""#), "the session must not change: {unharmed}");
    shutdown.cancel();
    serving.await.expect("join the server").expect("the server ends without error");
    sessions.shut_down().await;
}
