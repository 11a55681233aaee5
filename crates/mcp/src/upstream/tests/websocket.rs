//! A message a frame.

use std::sync::atomic::Ordering;

use axum::Router;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::http::HeaderMap;
use axum::routing::get;
use serde_json::{Value, json};

use super::loopback::{Served, call, connect, serve, settings};
use crate::upstream::{EndReason, Era, UpstreamError, Wire};

pub(super) async fn served(is_fragile: bool) -> (Served, Wire) {
    let upgrade = async move |upgrade: WebSocketUpgrade, headers: HeaderMap| {
        assert_eq!(
            (&headers["x-secret"], &headers["sec-websocket-protocol"]),
            (&"s3cret".parse().unwrap(), &"mcp".parse().unwrap())
        );
        upgrade.protocols(["mcp"]).on_upgrade(move |socket| play(socket, is_fragile))
    };
    let served = serve(Router::new().route("/ws", get(upgrade))).await;
    let wire = Wire::Websocket(settings(format!("ws://{}/ws", served.address)));
    (served, wire)
}

async fn play(mut socket: WebSocket, is_fragile: bool) {
    while let Some(Ok(Message::Text(text))) = socket.recv().await {
        let request: Value = serde_json::from_str(&text).unwrap();
        let result = match request["method"].as_str().unwrap() {
            "server/discover" if is_fragile => return,
            "initialize" => json!({"protocolVersion": "2025-06-18", "capabilities": {}}),
            "echo" => request["params"].clone(),
            "die" => return,
            "large" => {
                let size = usize::try_from(request["params"]["megabytes"].as_u64().unwrap()).unwrap() * 1_000_000;
                let answer = format!("{{\"id\":{},\"result\":\"{}\"}}", request["id"], "x".repeat(size));
                let _ = socket.send(Message::Text(answer.into())).await;
                continue;
            }
            method if method.starts_with("notifications/") => continue,
            _ => {
                let error = json!({"id": request["id"], "error": {"code": -32601, "message": "?"}});
                socket.send(Message::Text(error.to_string().into())).await.unwrap();
                continue;
            }
        };
        let answer = json!({"jsonrpc": "2.0", "id": request["id"], "result": result}).to_string();
        // Noise, and answers in either kind of frame.
        let _ = socket.send(Message::Text("noise".into())).await;
        let _ = socket.send(Message::Binary(answer.into())).await;
    }
}

#[tokio::test]
async fn calls_go_over_a_socket() {
    let (_served, wire) = served(false).await;
    let (upstream, _incoming) = connect(wire).await;
    let upstream = upstream.unwrap();
    assert_eq!(upstream.era(), Era::Legacy("2025-06-18".into()));
    assert_eq!(upstream.call(call("echo", json!({"odd": 1}))).await.unwrap(), json!({"odd": 1}));
    assert_eq!(upstream.counters().malformed.load(Ordering::Relaxed), 2);
    let died = upstream.call(call("die", json!({}))).await;
    assert!(matches!(died, Err(UpstreamError::Closed { may_have_run: true, .. })));
    assert!(matches!(upstream.ended().await, EndReason::Lost(_)));
}

#[tokio::test]
async fn a_frame_far_over_the_bound_ends_the_connection() {
    let (_served, wire) = served(false).await;
    let (upstream, _incoming) = connect(wire).await;
    let upstream = upstream.unwrap();
    let large = |megabytes: usize| upstream.call(call("large", json!({"megabytes": megabytes})));
    assert_eq!(large(16).await.unwrap().as_str().unwrap().len(), 16_000_000);
    assert_eq!(large(17).await, Err(UpstreamError::TooLarge));
    assert_eq!(upstream.call(call("echo", json!({"odd": 1}))).await.unwrap(), json!({"odd": 1}));
    assert_eq!(large(30).await, Err(UpstreamError::TooLarge));
    let EndReason::Lost(why) = upstream.ended().await else { panic!() };
    assert!(why.contains("16 MiB"), "{why}");
}

#[tokio::test]
async fn a_server_that_ends_when_asked_for_its_era_is_called_again() {
    let (_served, wire) = served(true).await;
    let (upstream, _incoming) = connect(wire).await;
    assert_eq!(upstream.unwrap().call(call("echo", json!({}))).await.unwrap(), json!({}));
}

#[tokio::test]
async fn what_is_no_socket_is_refused() {
    let served = serve(Router::new()).await;
    let (upstream, _incoming) = connect(Wire::Websocket(settings(format!("ws://{}/ws", served.address)))).await;
    assert!(matches!(upstream, Err(UpstreamError::Denied { status: 404, .. })));
}
