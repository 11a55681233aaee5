//! Limits on requests, connections and response data.

use ringfence_mcp::http::{HttpOptions, LARGE_BODY_BYTES};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{ACCEPT, JSON, ONE, OTHER, Server, request, two_tokens};

#[tokio::test]
async fn requests_of_one_token_leave_capacity_for_another() {
    let options = HttpOptions { max_requests: 4, ..HttpOptions::default() };
    let server = Server::with_tokens(two_tokens(), options).await;
    let mut open = Vec::new();
    for _ in 0..4 {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        // The body is never sent, so the request stays in progress.
        let head = format!("POST /mcp HTTP/1.1\r\nHost: localhost\r\n{JSON}\r\n{ONE}\r\nContent-Length: 9\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        open.push(stream);
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
    let mut open = Vec::new();
    for _ in 0..8 {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        let head =
            format!("POST /mcp HTTP/1.1\r\nHost: localhost\r\n{JSON}\r\n{ONE}\r\nContent-Length: {length}\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        open.push(stream);
    }
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    let mut ping = request("ping", json!({})).to_string();
    ping.extend(std::iter::repeat_n(' ', length));
    let response = server.send("POST /mcp", &[JSON, OTHER], &ping);
    let response = tokio::time::timeout(std::time::Duration::from_secs(10), response).await;
    assert_eq!(response.expect("the request does not wait").status, 200);
}

#[tokio::test]
async fn request_over_the_limit_fails_at_once() {
    let server = Server::start(HttpOptions { max_requests: 0, ..HttpOptions::default() }).await;
    let refusal = server.post(&[JSON], &request("tools/list", json!({}))).await;
    assert_eq!((refusal.status, refusal.header("retry-after")), (503, Some("1")));
    insta::assert_snapshot!(refusal.body);
    // A request that cannot be parsed has no id.
    let unreadable = server.send("POST /mcp", &[JSON], "{").await;
    assert_eq!(
        (unreadable.status, &unreadable.json()["id"], &unreadable.json()["error"]["code"]),
        (503, &json!(null), &json!(-32001))
    );
    let rest = server.send("GET /v1/sessions", &[], "").await;
    assert_eq!((rest.status, rest.header("retry-after")), (503, Some("1")), "{}", rest.body);
    assert_eq!(server.send("GET /health", &[], "").await.json()["status"], "down");
}

#[tokio::test]
async fn open_event_streams_do_not_count_as_requests() {
    let server = Server::start(HttpOptions { max_requests: 1, ..HttpOptions::default() }).await;
    let initialize =
        json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
    let opened = server.post(&[JSON, ACCEPT], &request("initialize", initialize)).await;
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
async fn connection_over_the_limit_is_refused_and_probes_get_a_response() {
    let server = Server::start(HttpOptions { max_connections: 2, ..HttpOptions::default() }).await;
    let mut open = Vec::new();
    for _ in 0..2 {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        // The connection is counted once it has a response.
        stream.write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
        let mut byte = [0];
        stream.read_exact(&mut byte).await.unwrap();
        open.push(stream);
    }
    let refusal = server.post(&[JSON], &request("ping", json!({}))).await;
    assert_eq!((refusal.status, refusal.header("retry-after")), (503, Some("1")));
    assert_eq!((&refusal.json()["id"], &refusal.json()["error"]["code"]), (&json!(1), &json!(-32001)));
    assert_eq!(server.send("GET /health", &[], "").await.json()["reason"], "user namespaces are off");
    drop(open.pop());
    while server.post(&[JSON], &request("ping", json!({}))).await.status != 200 {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn finished_requests_free_their_capacity() {
    let server = Server::start(HttpOptions { max_requests: 1, ..HttpOptions::default() }).await;
    for _ in 0..3 {
        assert_eq!(server.post(&[JSON], &request("tools/list", json!({}))).await.status, 200);
    }
}

#[tokio::test]
async fn unread_response_data_is_limited() {
    let server = Server::start(HttpOptions { max_response_bytes: 4 << 10, ..HttpOptions::default() }).await;
    let long = server.post(&[JSON], &request("tools/list", json!({}))).await;
    assert_eq!((long.status, long.header("retry-after"), &long.json()["id"]), (503, Some("1"), &json!(1)));
    assert_eq!(server.post(&[JSON], &request("ping", json!({}))).await.status, 200);
    // A client must not repeat a request that may have had an effect. The refusal contains the method.
    let ran = server.post(&[JSON], &request(&"x".repeat(8 << 10), json!({}))).await;
    assert_eq!((ran.status, ran.header("retry-after"), &ran.json()["id"]), (200, None, &json!(1)));
    insta::assert_snapshot!(ran.json()["error"]);
    let server = Server::start(HttpOptions { max_response_bytes: 8 << 10, ..HttpOptions::default() }).await;
    for _ in 0..3 {
        assert_eq!(server.post(&[JSON], &request("tools/list", json!({}))).await.status, 200);
    }
}

#[tokio::test]
async fn no_request_starts_while_its_response_could_not_be_sent() {
    let options = HttpOptions { max_body_bytes: 32 << 20, max_response_bytes: 20 << 20, ..HttpOptions::default() };
    let server = Server::start(options).await;
    // More than all buffers of the connection, and nearly the limit of unread response data.
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
