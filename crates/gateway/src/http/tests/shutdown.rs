//! Draining and shutdown.

use ringfence_mcp::http::HttpOptions;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{ACCEPT, JSON, Server, request};

#[tokio::test]
async fn draining_server_starts_no_request_and_finishes_open_ones() {
    let options = HttpOptions { max_requests: 1, ..HttpOptions::default() };
    let drain = options.drain.clone();
    let server = Server::start(options).await;
    // A request in progress: its body is incomplete.
    let body = request("ping", json!({})).to_string();
    let (first, last) = body.split_at(10);
    let mut in_progress = TcpStream::connect(server.address).await.unwrap();
    let head = format!("POST /mcp HTTP/1.1\r\nHost: localhost\r\n{JSON}\r\nContent-Length: {}\r\n\r\n", body.len());
    in_progress.write_all(format!("{head}{first}").as_bytes()).await.unwrap();
    while server.post(&[JSON], &request("ping", json!({}))).await.status != 503 {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    drain.cancel();
    let refusal = server.post(&[JSON], &request("ping", json!({}))).await;
    assert_eq!((refusal.status, &refusal.json()["error"]["code"]), (503, &json!(-32001)));
    assert_eq!(refusal.json()["error"]["message"], "the server is shutting down");
    let health = server.send("GET /health", &[], "").await;
    assert_eq!((health.status, &health.json()["reason"]), (503, &json!("the server is shutting down")));
    assert!(!server.shutdown.is_cancelled(), "a request is in progress");
    in_progress.write_all(last.as_bytes()).await.unwrap();
    let mut response = String::new();
    in_progress.read_to_string(&mut response).await.unwrap();
    assert!(response.starts_with("HTTP/1.1 200") && response.contains("\"result\""), "{response}");
    server.task.await.unwrap().unwrap();
}

#[tokio::test]
async fn full_or_draining_server_accepts_responses_and_cancellations() {
    let options = HttpOptions { max_requests: 1, ..HttpOptions::default() };
    let drain = options.drain.clone();
    let server = Server::start(options).await;
    let mut in_progress = TcpStream::connect(server.address).await.unwrap();
    let head = format!("POST /mcp HTTP/1.1\r\nHost: localhost\r\n{JSON}\r\nContent-Length: 100\r\n\r\n{{");
    in_progress.write_all(head.as_bytes()).await.unwrap();
    let ping = request("ping", json!({}));
    while server.post(&[JSON], &ping).await.status != 503 {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    let cancelled = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 9}});
    // Larger than a usual response to a request of the server, and below the limit.
    let content = "x".repeat(500_000);
    for response in [json!({"result": {"action": "accept", "content": content}}), json!({"error": {"code": -1}})] {
        let mut response = response;
        (response["jsonrpc"], response["id"]) = (json!("2.0"), json!(1));
        assert_eq!(server.post(&[JSON], &response).await.status, 202);
    }
    assert_eq!(server.post(&[JSON], &cancelled).await.status, 202);
    drain.cancel();
    assert_eq!(server.post(&[JSON], &json!({"jsonrpc": "2.0", "id": 1, "result": {}})).await.status, 202);
    assert_eq!(server.post(&[JSON], &cancelled).await.status, 202);
    assert_eq!(server.post(&[JSON], &ping).await.status, 503);
    assert_eq!(server.send("GET /mcp", &[ACCEPT], "").await.status, 503);
    // A client that resumes a stream is accepted; this one has no MCP session.
    assert_eq!(server.send("GET /mcp", &[ACCEPT, "Last-Event-ID: 1-0"], "").await.status, 405);
}

#[tokio::test]
async fn server_ends_on_shutdown() {
    let server = Server::start(HttpOptions::default()).await;
    assert_eq!(server.send("GET /health", &[], "").await.status, 503);
    server.shutdown.cancel();
    server.task.await.unwrap().unwrap();
}
