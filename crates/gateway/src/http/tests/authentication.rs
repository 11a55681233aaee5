//! Tokens, hosts and origins.

use ringfence_mcp::http::HttpOptions;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{JSON, ONE, Server, request, two_tokens};
use crate::authorize::{MAX_FAILURES, Token};

#[tokio::test]
async fn unknown_hosts_and_origins_are_refused() {
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
async fn every_request_needs_a_token() {
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

#[tokio::test]
async fn incomplete_requests_without_token_do_not_block_clients_with_one() {
    let options = HttpOptions { max_connections: 32, ..HttpOptions::default() };
    let server = Server::with_tokens(two_tokens(), options).await;
    let mut incomplete = Vec::new();
    for _ in 0..200 {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        let _ = stream.write_all(b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nX-Slow: ").await;
        incomplete.push(stream);
    }
    for _ in 0..50 {
        let response = server.post(&[JSON, ONE], &request("ping", json!({}))).await;
        assert_eq!(response.status, 200, "{}", response.body);
    }
    let mut response = String::new();
    let _ = incomplete[0].read_to_string(&mut response).await;
    assert!(response.starts_with("HTTP/1.1 503 "), "a closed connection gets a response: {response}");
}

#[tokio::test(start_paused = true)]
async fn clients_must_authenticate_soon() {
    let server = Server::with_tokens(two_tokens(), HttpOptions::default()).await;
    let refused = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
    for sent in ["", "GET / HTTP/1.1\r\nHost: lo", refused] {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(sent.as_bytes()).await.unwrap();
        let start = tokio::time::Instant::now();
        let mut response = Vec::new();
        let _ = stream.read_to_end(&mut response).await;
        let elapsed = start.elapsed().as_secs();
        assert!((9..=13).contains(&elapsed), "{sent:?} was closed after {elapsed} s");
    }
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let head = format!("GET / HTTP/1.1\r\nHost: localhost\r\n{ONE}\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let start = tokio::time::Instant::now();
    let _ = stream.read_to_end(&mut Vec::new()).await;
    assert!(start.elapsed().as_secs() >= 50, "a client with a token may be silent for longer");
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
async fn cors_only_if_enabled() {
    let preflight = ["Origin: http://localhost:5173", "Access-Control-Request-Method: POST"];
    let closed = Server::start(HttpOptions::default()).await;
    assert_eq!(closed.send("OPTIONS /mcp", &preflight, "").await.header("access-control-allow-origin"), None);
    let open = Server::start(HttpOptions { enable_cors: true, ..HttpOptions::default() }).await;
    let response = open.send("OPTIONS /mcp", &preflight, "").await;
    assert_eq!(response.header("access-control-allow-origin"), Some("http://localhost:5173"));
    let evil = ["Origin: https://evil.example", "Access-Control-Request-Method: POST"];
    assert_eq!(open.send("OPTIONS /mcp", &evil, "").await.header("access-control-allow-origin"), None);
}
