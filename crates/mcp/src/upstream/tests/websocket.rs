//! The WebSocket transport.

use std::sync::atomic::Ordering;

use axum::Router;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::http::HeaderMap;
use axum::routing::get;
use serde_json::{Value, json};

use super::http_servers::{Served, call, connect, remote_target, serve};
use crate::upstream::{EndReason, Era, Target, UpstreamError};

pub(super) async fn serve_websocket(closes_on_probe: bool) -> (Served, Target) {
    let upgrade = async move |upgrade: WebSocketUpgrade, headers: HeaderMap| {
        assert_eq!(
            (&headers["x-secret"], &headers["sec-websocket-protocol"]),
            (&"s3cret".parse().unwrap(), &"mcp".parse().unwrap())
        );
        upgrade.protocols(["mcp"]).on_upgrade(move |socket| respond(socket, closes_on_probe))
    };
    let served = serve(Router::new().route("/ws", get(upgrade))).await;
    let target = Target::WebSocket(remote_target(format!("ws://{}/ws", served.address)));
    (served, target)
}

async fn respond(mut socket: WebSocket, closes_on_probe: bool) {
    while let Some(Ok(Message::Text(text))) = socket.recv().await {
        let request: Value = serde_json::from_str(&text).unwrap();
        let result = match request["method"].as_str().unwrap() {
            "server/discover" if closes_on_probe => return,
            "initialize" => json!({"protocolVersion": "2025-06-18", "capabilities": {}}),
            "echo" => request["params"].clone(),
            "die" => return,
            "large" => {
                let size = usize::try_from(request["params"]["megabytes"].as_u64().unwrap()).unwrap() * 1_000_000;
                let response = format!("{{\"id\":{},\"result\":\"{}\"}}", request["id"], "x".repeat(size));
                let _ = socket.send(Message::Text(response.into())).await;
                continue;
            }
            method if method.starts_with("notifications/") => continue,
            _ => {
                let error = json!({"id": request["id"], "error": {"code": -32601, "message": "?"}});
                socket.send(Message::Text(error.to_string().into())).await.unwrap();
                continue;
            }
        };
        let response = json!({"jsonrpc": "2.0", "id": request["id"], "result": result}).to_string();
        // An invalid message first, then the response in a binary frame.
        let _ = socket.send(Message::Text("noise".into())).await;
        let _ = socket.send(Message::Binary(response.into())).await;
    }
}

#[tokio::test]
async fn calls_work_over_websocket() {
    let (_served, target) = serve_websocket(false).await;
    let (upstream, _incoming) = connect(target).await;
    let upstream = upstream.unwrap();
    assert_eq!(upstream.era(), Era::Legacy("2025-06-18".into()));
    assert_eq!(upstream.call(call("echo", json!({"odd": 1}))).await.unwrap(), json!({"odd": 1}));
    assert_eq!(upstream.counters().malformed.load(Ordering::Relaxed), 2);
    let died = upstream.call(call("die", json!({}))).await;
    assert!(matches!(died, Err(UpstreamError::Closed { may_have_run: true, .. })));
    assert!(matches!(upstream.ended().await, EndReason::Lost(_)));
}

#[tokio::test]
async fn message_far_over_limit_ends_connection() {
    let (_served, target) = serve_websocket(false).await;
    let (upstream, _incoming) = connect(target).await;
    let upstream = upstream.unwrap();
    let large = |megabytes: usize| upstream.call(call("large", json!({"megabytes": megabytes})));
    assert_eq!(large(16).await.unwrap().as_str().unwrap().len(), 16_000_000);
    assert_eq!(large(17).await, Err(UpstreamError::TooLarge));
    assert_eq!(upstream.call(call("echo", json!({"odd": 1}))).await.unwrap(), json!({"odd": 1}));
    assert_eq!(large(30).await, Err(UpstreamError::TooLarge));
    let EndReason::Lost(reason) = upstream.ended().await else { panic!() };
    assert!(reason.contains("16 MiB"), "{reason}");
}

#[tokio::test]
async fn server_that_closes_on_probe_is_connected_as_legacy() {
    let (_served, target) = serve_websocket(true).await;
    let (upstream, _incoming) = connect(target).await;
    assert_eq!(upstream.unwrap().call(call("echo", json!({}))).await.unwrap(), json!({}));
}

#[tokio::test]
async fn url_without_websocket_is_rejected() {
    let served = serve(Router::new()).await;
    let (upstream, _incoming) = connect(Target::WebSocket(remote_target(format!("ws://{}/ws", served.address)))).await;
    assert!(matches!(upstream, Err(UpstreamError::HttpStatus { status: 404, .. })));
}
