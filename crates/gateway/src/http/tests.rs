//! Real HTTP over loopback, as far as it goes without a sandbox.

use std::net::SocketAddr;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use ringfence_mcp::http::HttpOptions;

use serde_json::json;

use super::*;
use crate::authorize::{MAX_FAILURES, Token};

const JSON: &str = "Content-Type: application/json";
const ACCEPT: &str = "Accept: application/json, text/event-stream";

struct Server {
    address: SocketAddr,
    shutdown: CancellationToken,
    task: tokio::task::JoinHandle<Result<(), ServeError>>,
}

struct Answered {
    status: u16,
    head: String,
    body: String,
}

impl Answered {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}\n\n{}", self.head, self.body))
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().filter_map(|line| line.split_once(": ")).find(|(key, _)| *key == name).map(|(_, value)| value)
    }
}

impl Server {
    async fn start(options: HttpOptions) -> Self {
        Self::with_tokens(Vec::new(), options).await
    }

    async fn with_tokens(tokens: Vec<Token>, options: HttpOptions) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shutdown = CancellationToken::new();
        let gateway = Gateway::without_backend("user namespaces are off");
        let authentication = AuthenticationOptions { tokens, ..AuthenticationOptions::default() };
        let task = tokio::spawn(serve_http(listener, gateway, authentication, options, shutdown.clone()));
        Self { address, shutdown, task }
    }

    async fn send(&self, line: &str, headers: &[&str], body: &str) -> Answered {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let host = format!("Host: {}", self.address);
        let named = headers.iter().any(|header| header.starts_with("Host:"));
        let length = format!("Content-Length: {}", body.len());
        let mut lines = vec!["Connection: close", &length];
        lines.extend(headers);
        lines.extend((!named).then_some(host.as_str()));
        let head = format!("{line} HTTP/1.1\r\n{}\r\n", lines.join("\r\n"));
        stream.write_all(format!("{head}\r\n{body}").as_bytes()).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        Answered { status: head[9..12].parse().unwrap(), head: head.into(), body: body.into() }
    }

    async fn post(&self, headers: &[&str], message: &Value) -> Answered {
        self.send("POST /mcp", headers, &message.to_string()).await
    }
}

fn request(method: &str, mut params: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params.take()})
}

fn modern(mut params: Value) -> Value {
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    params
}

#[tokio::test]
async fn a_bare_request_is_answered_in_json() {
    let server = Server::start(HttpOptions::default()).await;
    for accept in [&[JSON][..], &[JSON, "Accept: */*"], &[JSON, "Accept: application/json"]] {
        let answer = server.post(accept, &json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"})).await;
        assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/json")));
        assert_eq!(answer.json()["result"]["tools"].as_array().unwrap().len(), 8);
    }
    let call = json!({"name": "execute_code", "arguments": {"code": "1"}});
    insta::assert_snapshot!(server.post(&[JSON], &request("tools/call", call)).await.json());
}

#[tokio::test]
async fn the_older_era() {
    let server = Server::start(HttpOptions::default()).await;
    for version in ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"] {
        let hello =
            json!({"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
        let answer = server.post(&[JSON, ACCEPT], &request("initialize", hello)).await;
        assert_eq!(answer.json()["result"]["protocolVersion"], version);
        let session = format!("Mcp-Session-Id: {}", answer.header("mcp-session-id").unwrap());
        let version = format!("MCP-Protocol-Version: {version}");
        let headers = [JSON, ACCEPT, &session, &version];
        let started = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        assert_eq!(server.post(&headers, &started).await.status, 202);
        let cancelled = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 9}});
        assert_eq!(server.post(&headers, &cancelled).await.status, 202);
        let list = server.post(&headers, &request("tools/list", json!({}))).await.json();
        assert_eq!(list["result"]["tools"][0]["name"], "execute_code");
        assert!(list["result"].get("resultType").is_none());
        assert_eq!(server.post(&headers, &request("ping", json!({}))).await.json()["result"], json!({}));
    }
    let future =
        json!({"protocolVersion": "2099-01-01", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
    let answer = server.post(&[JSON, ACCEPT], &request("initialize", future)).await;
    insta::assert_json_snapshot!(answer.json()["result"]);
}

#[tokio::test]
async fn the_newer_era() {
    let server = Server::start(HttpOptions::default()).await;
    let version = "MCP-Protocol-Version: 2026-07-28";
    let discover = server
        .post(&[JSON, ACCEPT, version, "Mcp-Method: server/discover"], &request("server/discover", modern(json!({}))))
        .await;
    assert_eq!(discover.header("mcp-session-id"), None);
    insta::assert_json_snapshot!(discover.json());

    let list = server
        .post(&[JSON, ACCEPT, version, "Mcp-Method: tools/list"], &request("tools/list", modern(json!({}))))
        .await
        .json();
    assert_eq!(list["result"]["resultType"], "complete");
    assert_eq!(list["result"]["tools"].as_array().unwrap().len(), 8);

    let call = modern(json!({"name": "execute_code", "arguments": {"code": ""}}));
    let headers = [JSON, ACCEPT, version, "Mcp-Method: tools/call", "Mcp-Name: execute_code"];
    let refusal = server.post(&headers, &request("tools/call", call)).await;
    assert_eq!((refusal.status, &refusal.json()["error"]["data"]["error_code"]), (200, &json!("VALIDATION_ERROR")));

    let unknown = server.post(&[JSON, ACCEPT, version, "Mcp-Method: x/y"], &request("x/y", modern(json!({})))).await;
    assert_eq!((unknown.status, &unknown.json()["error"]["code"]), (404, &json!(-32601)));
}

#[tokio::test]
async fn bad_calls_say_why() {
    let server = Server::start(HttpOptions::default()).await;
    let mut said = Vec::new();
    for params in [
        json!({"name": "execute_code", "arguments": {"code": 1}}),
        json!({"name": "execute_code", "arguments": {"code": "1", "cwd": "/"}}),
        json!({"name": "execute_code", "arguments": ["1"]}),
        json!({"name": "nothing"}),
        json!({}),
    ] {
        said.push(server.post(&[JSON], &request("tools/call", params)).await.body);
    }
    for body in ["{", "[]", "5", r#"{"jsonrpc":"2.0","id":1,"method":7}"#] {
        let answer = server.send("POST /mcp", &[JSON], body).await;
        assert_eq!(answer.status, 400);
        said.push(answer.body);
    }
    insta::assert_snapshot!(said.join("\n"));
}

#[tokio::test]
async fn a_conversation_that_was_ended_does_not_begin_again() {
    let server = Server::start(HttpOptions::default()).await;
    let id = "Mcp-Session-Id: one";
    assert_eq!(server.post(&[JSON, id], &request("tools/list", json!({}))).await.status, 200);
    assert_eq!(server.send("DELETE /mcp", &[id], "").await.status, 204);
    for _ in 0..2 {
        assert_eq!(server.send("GET /mcp", &[id, ACCEPT], "").await.status, 404);
        assert_eq!(server.post(&[JSON, id], &request("tools/list", json!({}))).await.status, 404);
        assert_eq!(server.send("DELETE /mcp", &[id], "").await.status, 404);
    }
}

#[tokio::test]
async fn what_is_not_mcp() {
    let server = Server::start(HttpOptions { max_body_bytes: 1000, ..HttpOptions::default() }).await;
    assert_eq!(server.send("GET /mcp", &[ACCEPT], "").await.status, 405);
    assert_eq!(server.send("DELETE /mcp", &[], "").await.status, 405);
    assert_eq!(server.send("GET /nowhere", &[], "").await.status, 404);
    assert_eq!(server.send("POST /mcp", &["Content-Type: text/plain"], "{}").await.status, 415);
    assert_eq!(server.send("POST /mcp", &[JSON], &" ".repeat(1001)).await.status, 413);
}

#[tokio::test]
async fn the_server_about_itself() {
    let server = Server::start(HttpOptions::default()).await;
    let about = server.send("GET /", &[], "").await.json();
    assert_eq!(about["version"], env!("CARGO_PKG_VERSION"));
    insta::assert_snapshot!(about["protocol_versions"]);
    insta::assert_snapshot!(about["backend"], @r#"{"state":"down","reason":"user namespaces are off"}"#);
    let health = server.send("GET /health", &[], "").await;
    assert_eq!(health.status, 503);
    insta::assert_snapshot!(health.json(), @r#"{"status":"down","reason":"user namespaces are off"}"#);
}

#[tokio::test]
async fn strangers_are_refused() {
    let server =
        Server::start(HttpOptions { allowed_hosts: vec!["box.example".into()], ..HttpOptions::default() }).await;
    for (header, status) in [
        ("Host: evil.example", 403),
        ("Host: box.example", 200),
        ("Host: localhost:1", 200),
        ("Origin: https://evil.example", 403),
        ("Origin: null", 403),
        ("Origin: http://localhost:5173", 200),
    ] {
        for (line, body) in [("GET /", String::new()), ("POST /mcp", request("tools/list", json!({})).to_string())] {
            assert_eq!(server.send(line, &[header, JSON], &body).await.status, status, "{header} {line}");
        }
    }
    assert_eq!(server.send("GET /health", &["Host: evil.example"], "").await.status, 403);
}

#[tokio::test]
async fn a_token_is_asked_for() {
    let tokens = vec![
        Token { principal: "a".into(), secret: "alpha".into() },
        Token { principal: "b".into(), secret: "beta".into() },
    ];
    let server = Server::with_tokens(tokens, HttpOptions::default()).await;
    let list = request("tools/list", json!({}));
    for authorization in
        ["X-None: 1", "Authorization: Bearer alph", "Authorization: Basic alpha", "Authorization: Bearer "]
    {
        let refusal = server.post(&[JSON, authorization], &list).await;
        assert_eq!((refusal.status, refusal.header("www-authenticate")), (401, Some("Bearer")), "{authorization}");
    }
    assert_eq!(server.send("GET /", &[], "").await.status, 401);
    assert_eq!(server.send("GET /health", &[], "").await.status, 503);
    for authorization in ["Authorization: Bearer alpha", "authorization: bearer beta"] {
        assert_eq!(server.post(&[JSON, authorization], &list).await.status, 200);
    }
}

fn two_tokens() -> Vec<Token> {
    ["one", "other"].map(|name| Token { principal: name.into(), secret: format!("the-secret-of-{name}") }).into()
}

const ONE: &str = "Authorization: Bearer the-secret-of-one";
const OTHER: &str = "Authorization: Bearer the-secret-of-other";

#[tokio::test]
async fn half_sent_heads_of_strangers_keep_no_token_out() {
    let options = HttpOptions { max_connections: 32, ..HttpOptions::default() };
    let server = Server::with_tokens(two_tokens(), options).await;
    let mut strangers = Vec::new();
    for _ in 0..200 {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        let _ = stream.write_all(b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nX-Slow: ").await;
        strangers.push(stream);
    }
    for _ in 0..50 {
        let answer = server.post(&[JSON, ONE], &request("ping", json!({}))).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
    }
    let mut answer = String::new();
    let _ = strangers[0].read_to_string(&mut answer).await;
    assert!(answer.starts_with("HTTP/1.1 503 "), "a connection that gives way is answered: {answer}");
}

#[tokio::test(start_paused = true)]
async fn clients_must_authenticate_soon() {
    let server = Server::with_tokens(two_tokens(), HttpOptions::default()).await;
    let refused = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
    for says in ["", "GET / HTTP/1.1\r\nHost: lo", refused] {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(says.as_bytes()).await.unwrap();
        let began = tokio::time::Instant::now();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        let took = began.elapsed().as_secs();
        assert!((9..=13).contains(&took), "{says:?} was closed after {took} s");
    }
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let head = format!("GET / HTTP/1.1\r\nHost: localhost\r\n{ONE}\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let began = tokio::time::Instant::now();
    let _ = stream.read_to_end(&mut Vec::new()).await;
    assert!(began.elapsed().as_secs() >= 50, "a client with a token may be silent for longer");
}

#[tokio::test]
async fn failed_authentication_is_limited_and_valid_tokens_pass_on_loopback() {
    let server = Server::with_tokens(two_tokens(), HttpOptions::default()).await;
    let ping = request("ping", json!({}));
    let wrong = "Authorization: Bearer a-guess-of-a-secret";
    let mut statuses = Vec::new();
    for _ in 0..MAX_FAILURES * 2 {
        statuses.push(server.post(&[JSON, wrong], &ping).await.status);
    }
    assert_eq!(statuses[..MAX_FAILURES as usize], [401; MAX_FAILURES as usize]);
    let limited = server.post(&[JSON, wrong], &ping).await;
    assert_eq!((limited.status, limited.header("retry-after")), (429, Some("1")), "{statuses:?}");
    assert_eq!(server.post(&[JSON, ONE], &ping).await.status, 200);
}

#[tokio::test]
async fn requests_of_one_token_leave_room_for_another() {
    let options = HttpOptions { max_requests: 4, ..HttpOptions::default() };
    let server = Server::with_tokens(two_tokens(), options).await;
    let mut held = Vec::new();
    for _ in 0..4 {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        // The body is never sent, so the request stays under way.
        let head = format!("POST /mcp HTTP/1.1\r\nHost: localhost\r\n{JSON}\r\n{ONE}\r\nContent-Length: 9\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        held.push(stream);
    }
    let ping = request("ping", json!({}));
    let mut refusal = server.post(&[JSON, ONE], &ping).await;
    while refusal.status == 200 {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        refusal = server.post(&[JSON, ONE], &ping).await;
    }
    assert_eq!((refusal.status, refusal.header("retry-after")), (503, Some("1")));
    assert!(refusal.body.contains("your token has 3 requests in progress"), "{}", refusal.body);
    assert!(refusal.body.contains("server.max_concurrent_requests"), "{}", refusal.body);
    assert_eq!(server.post(&[JSON, OTHER], &ping).await.status, 200);
}

#[tokio::test]
async fn large_requests_of_one_token_do_not_delay_another() {
    let server = Server::with_tokens(two_tokens(), HttpOptions::default()).await;
    let length = LARGE_BODY_BYTES + 1;
    let mut held = Vec::new();
    for _ in 0..8 {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        let head =
            format!("POST /mcp HTTP/1.1\r\nHost: localhost\r\n{JSON}\r\n{ONE}\r\nContent-Length: {length}\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        held.push(stream);
    }
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    let mut ping = request("ping", json!({})).to_string();
    ping.extend(std::iter::repeat_n(' ', length));
    let answer = server.send("POST /mcp", &[JSON, OTHER], &ping);
    let answer = tokio::time::timeout(std::time::Duration::from_secs(10), answer).await;
    assert_eq!(answer.expect("it need not wait").status, 200);
}

#[tokio::test]
async fn no_room_is_said_at_once() {
    let server = Server::start(HttpOptions { max_requests: 0, ..HttpOptions::default() }).await;
    let refusal = server.post(&[JSON], &request("tools/list", json!({}))).await;
    assert_eq!((refusal.status, refusal.header("retry-after")), (503, Some("1")));
    insta::assert_snapshot!(refusal.body);
    // One that cannot be read has no id.
    let odd = server.send("POST /mcp", &[JSON], "{").await;
    assert_eq!((odd.status, &odd.json()["id"], &odd.json()["error"]["code"]), (503, &json!(null), &json!(-32001)));
    let rest = server.send("GET /v1/sessions", &[], "").await;
    assert_eq!((rest.status, rest.header("retry-after")), (503, Some("1")), "{}", rest.body);
    assert_eq!(server.send("GET /health", &[], "").await.json()["status"], "down");
}

#[tokio::test]
async fn a_client_that_only_listens_takes_no_place() {
    let server = Server::start(HttpOptions { max_requests: 1, ..HttpOptions::default() }).await;
    let hello =
        json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
    let opened = server.post(&[JSON, ACCEPT], &request("initialize", hello)).await;
    let mut streams = Vec::new();
    for _ in 0..3 {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        let id = opened.header("mcp-session-id").unwrap();
        let head = format!("GET /mcp HTTP/1.1\r\nHost: localhost\r\n{ACCEPT}\r\nMcp-Session-Id: {id}\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut status = [0; 12];
        stream.read_exact(&mut status).await.unwrap();
        assert_eq!(&status, b"HTTP/1.1 200");
        streams.push(stream);
    }
    assert_eq!(server.post(&[JSON], &request("ping", json!({}))).await.status, 200);
}

#[tokio::test]
async fn one_connection_too_many_is_told_and_probes_are_answered() {
    let server = Server::start(HttpOptions { max_connections: 2, ..HttpOptions::default() }).await;
    let mut held = Vec::new();
    for _ in 0..2 {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        // It has its place once it is answered.
        stream.write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
        let mut byte = [0];
        stream.read_exact(&mut byte).await.unwrap();
        held.push(stream);
    }
    let refusal = server.post(&[JSON], &request("ping", json!({}))).await;
    assert_eq!((refusal.status, refusal.header("retry-after")), (503, Some("1")));
    assert_eq!((&refusal.json()["id"], &refusal.json()["error"]["code"]), (&json!(1), &json!(-32001)));
    assert_eq!(server.send("GET /health", &[], "").await.json()["reason"], "user namespaces are off");
    drop(held.pop());
    while server.post(&[JSON], &request("ping", json!({}))).await.status != 200 {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_server_that_drains_begins_nothing_and_ends_when_all_is_done() {
    let options = HttpOptions { max_requests: 1, ..HttpOptions::default() };
    let drain = options.drain.clone();
    let server = Server::start(options).await;
    // A request under way: its body is not all there yet.
    let body = request("ping", json!({})).to_string();
    let (first, last) = body.split_at(10);
    let mut under_way = TcpStream::connect(server.address).await.unwrap();
    let head = format!("POST /mcp HTTP/1.1\r\nHost: localhost\r\n{JSON}\r\nContent-Length: {}\r\n\r\n", body.len());
    under_way.write_all(format!("{head}{first}").as_bytes()).await.unwrap();
    while server.post(&[JSON], &request("ping", json!({}))).await.status != 503 {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    drain.cancel();
    let refusal = server.post(&[JSON], &request("ping", json!({}))).await;
    assert_eq!((refusal.status, &refusal.json()["error"]["code"]), (503, &json!(-32001)));
    assert_eq!(refusal.json()["error"]["message"], "the server is shutting down");
    let health = server.send("GET /health", &[], "").await;
    assert_eq!((health.status, &health.json()["reason"]), (503, &json!("the server is shutting down")));
    assert!(!server.shutdown.is_cancelled(), "a request is under way");
    under_way.write_all(last.as_bytes()).await.unwrap();
    let mut answer = String::new();
    under_way.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("\"result\""), "{answer}");
    server.task.await.unwrap().unwrap();
}

#[tokio::test]
async fn what_ends_a_wait_is_heard_by_a_server_that_is_full_or_drains() {
    let options = HttpOptions { max_requests: 1, ..HttpOptions::default() };
    let drain = options.drain.clone();
    let server = Server::start(options).await;
    let mut under_way = TcpStream::connect(server.address).await.unwrap();
    let head = format!("POST /mcp HTTP/1.1\r\nHost: localhost\r\n{JSON}\r\nContent-Length: 100\r\n\r\n{{");
    under_way.write_all(head.as_bytes()).await.unwrap();
    let ping = request("ping", json!({}));
    while server.post(&[JSON], &ping).await.status != 503 {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    let cancelled = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 9}});
    // More than a question is likely to be answered with, and less than the bound.
    let picture = "x".repeat(500_000);
    for answer in [json!({"result": {"action": "accept", "content": picture}}), json!({"error": {"code": -1}})] {
        let mut answer = answer;
        (answer["jsonrpc"], answer["id"]) = (json!("2.0"), json!(1));
        assert_eq!(server.post(&[JSON], &answer).await.status, 202);
    }
    assert_eq!(server.post(&[JSON], &cancelled).await.status, 202);
    drain.cancel();
    assert_eq!(server.post(&[JSON], &json!({"jsonrpc": "2.0", "id": 1, "result": {}})).await.status, 202);
    assert_eq!(server.post(&[JSON], &cancelled).await.status, 202);
    assert_eq!(server.post(&[JSON], &ping).await.status, 503);
    assert_eq!(server.send("GET /mcp", &[ACCEPT], "").await.status, 503);
    // Whoever comes back for the rest of an answer is let in; this one has no conversation.
    assert_eq!(server.send("GET /mcp", &[ACCEPT, "Last-Event-ID: 1-0"], "").await.status, 405);
}

#[tokio::test]
async fn room_is_given_back() {
    let server = Server::start(HttpOptions { max_requests: 1, ..HttpOptions::default() }).await;
    for _ in 0..3 {
        assert_eq!(server.post(&[JSON], &request("tools/list", json!({}))).await.status, 200);
    }
}

#[tokio::test]
async fn what_is_on_its_way_to_clients_is_bounded() {
    let server = Server::start(HttpOptions { max_response_bytes: 4 << 10, ..HttpOptions::default() }).await;
    let long = server.post(&[JSON], &request("tools/list", json!({}))).await;
    assert_eq!((long.status, long.header("retry-after"), &long.json()["id"]), (503, Some("1"), &json!(1)));
    assert_eq!(server.post(&[JSON], &request("ping", json!({}))).await.status, 200);
    // What may have had an effect is not to be asked for again. The refusal repeats the method.
    let ran = server.post(&[JSON], &request(&"x".repeat(8 << 10), json!({}))).await;
    assert_eq!((ran.status, ran.header("retry-after"), &ran.json()["id"]), (200, None, &json!(1)));
    insta::assert_snapshot!(ran.json()["error"]);
    let server = Server::start(HttpOptions { max_response_bytes: 8 << 10, ..HttpOptions::default() }).await;
    for _ in 0..3 {
        assert_eq!(server.post(&[JSON], &request("tools/list", json!({}))).await.status, 200);
    }
}

#[tokio::test]
async fn nothing_begins_whose_answer_might_be_lost() {
    let options = HttpOptions { max_body_bytes: 32 << 20, max_response_bytes: 20 << 20, ..HttpOptions::default() };
    let server = Server::start(options).await;
    // More than all buffers between here and there hold, and nearly all that may be on its way.
    let body = request(&"x".repeat(20_000 << 10), json!({})).to_string();
    let head = format!("POST /mcp HTTP/1.1\r\nHost: localhost\r\n{JSON}\r\nContent-Length: {}\r\n\r\n", body.len());
    let mut slow = TcpStream::connect(server.address).await.unwrap();
    slow.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
    slow.read_exact(&mut [0; 12]).await.unwrap();
    let ping = request("ping", json!({}));
    let refusal = server.post(&[JSON], &ping).await;
    assert_eq!((refusal.status, refusal.header("retry-after")), (503, Some("1")), "{}", refusal.body);
    assert_eq!(refusal.json()["error"]["message"], "too much response data waits to be read by clients");
    drop(slow);
    while server.post(&[JSON], &ping).await.status != 200 {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn cors_only_if_enabled() {
    let preflight = ["Origin: http://localhost:5173", "Access-Control-Request-Method: POST"];
    let closed = Server::start(HttpOptions::default()).await;
    assert_eq!(closed.send("OPTIONS /mcp", &preflight, "").await.header("access-control-allow-origin"), None);
    let open = Server::start(HttpOptions { enable_cors: true, ..HttpOptions::default() }).await;
    let answer = open.send("OPTIONS /mcp", &preflight, "").await;
    assert_eq!(answer.header("access-control-allow-origin"), Some("http://localhost:5173"));
    let evil = ["Origin: https://evil.example", "Access-Control-Request-Method: POST"];
    assert_eq!(open.send("OPTIONS /mcp", &evil, "").await.header("access-control-allow-origin"), None);
}

#[tokio::test]
async fn it_ends_when_told() {
    let server = Server::start(HttpOptions::default()).await;
    assert_eq!(server.send("GET /health", &[], "").await.status, 503);
    server.shutdown.cancel();
    server.task.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_batch_is_answered_with_one_where_the_version_has_them() {
    let server = Server::start(HttpOptions::default()).await;
    let ask = |id: u32, method: &str| json!({"jsonrpc": "2.0", "id": id, "method": method});
    let told = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    let batch = json!([told, ask(1, "ping"), 7, ask(2, "initialize"), ask(3, "tools/list")]);
    for headers in [vec![JSON], vec![JSON, ACCEPT, "MCP-Protocol-Version: 2025-03-26"]] {
        let answers = server.post(&headers, &batch).await.json();
        let told: Vec<_> =
            answers.as_array().unwrap().iter().map(|it| (it["id"].as_u64(), it["error"]["code"].as_i64())).collect();
        assert_eq!(told, [(None, Some(-32600)), (Some(1), None), (Some(2), Some(-32600)), (Some(3), None)]);
    }
    assert_eq!(server.post(&[JSON], &json!([told, told])).await.status, 202);
    let cancelled = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}});
    let withdrawn =
        server.post(&[JSON, "Mcp-Session-Id: one"], &json!([ask(1, "ping"), ask(2, "ping"), cancelled])).await;
    assert_eq!(withdrawn.json().as_array().unwrap().len(), 1, "what is cancelled before its turn is not answered");
    for version in ["2025-06-18", "2026-07-28"] {
        let refused = server.post(&[JSON, &format!("MCP-Protocol-Version: {version}")], &batch).await;
        assert_eq!((refused.status, &refused.json()["error"]["code"]), (400, &json!(-32600)));
    }
    let among = json!([{"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": modern(json!({}))}]);
    assert!(server.post(&[JSON], &among).await.json()[0]["error"].is_object());
}
