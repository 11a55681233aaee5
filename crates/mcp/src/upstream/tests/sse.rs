//! HTTP with SSE, the transport of 2024-11-05.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures_util::{StreamExt, stream};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::http_servers::{Served, call, connect, event, events, remote_target, serve};
use crate::upstream::{EndReason, Era, Incoming, RemoteTarget, Target, UpstreamError};

/// A server for one client at a time.
#[derive(Clone)]
pub(super) struct SseServer {
    endpoint: &'static str,
    stream: Arc<Mutex<Option<mpsc::Sender<String>>>>,
}

pub(super) async fn serve_sse(endpoint: &'static str) -> (Served, RemoteTarget, SseServer) {
    let server = SseServer { endpoint, stream: Arc::default() };
    let router = Router::new()
        .route("/sse", get(open).post(async || StatusCode::METHOD_NOT_ALLOWED))
        .route("/messages", axum::routing::post(post))
        .with_state(server.clone());
    let served = serve(router).await;
    let target = remote_target(format!("http://{}/sse", served.address));
    (served, target, server)
}

async fn open(State(server): State<SseServer>) -> Response {
    let (sender, receiver) = mpsc::channel(64);
    *server.stream.lock().unwrap() = Some(sender);
    let first = stream::iter([format!("event: endpoint\ndata: {}\n\n", server.endpoint)]);
    events(first.chain(stream::unfold(receiver, async |mut receiver| Some((receiver.recv().await?, receiver)))))
}

async fn post(State(server): State<SseServer>, headers: HeaderMap, axum::Json(body): axum::Json<Value>) -> Response {
    assert_eq!(headers["x-secret"], "s3cret");
    let stream = server.stream.lock().unwrap().clone().unwrap();
    let response = |result: Value| event(&json!({"jsonrpc": "2.0", "id": body["id"], "result": result}));
    let text = match body["method"].as_str().unwrap_or_default() {
        "initialize" => response(json!({"protocolVersion": "2024-11-05", "capabilities": {}})),
        "die" => {
            server.stream.lock().unwrap().take();
            return StatusCode::ACCEPTED.into_response();
        }
        "denied" => return StatusCode::BAD_REQUEST.into_response(),
        "large" => format!("data: {{\"id\":{},\"result\":\"{}\"}}\n\n", body["id"], "x".repeat(17 << 20)),
        "echo" => response(body["params"].clone()),
        _ => return StatusCode::ACCEPTED.into_response(),
    };
    stream.send(text).await.unwrap();
    StatusCode::ACCEPTED.into_response()
}

#[tokio::test]
async fn messages_are_posted_and_responses_arrive_on_stream() {
    let (_served, target, server) = serve_sse("/messages?session=1").await;
    let (upstream, mut incoming) = connect(Target::Sse(target)).await;
    let upstream = upstream.unwrap();
    assert_eq!(upstream.era(), Era::Legacy("2024-11-05".into()));
    assert_eq!(upstream.call(call("echo", json!({"odd": 1}))).await.unwrap(), json!({"odd": 1}));
    let stream = server.stream.lock().unwrap().clone().unwrap();
    stream.send(event(&json!({"jsonrpc": "2.0", "method": "notifications/message"}))).await.unwrap();
    assert!(matches!(incoming.recv().await, Some(Incoming::Notification { .. })));
    assert!(matches!(
        upstream.call(call("denied", json!({}))).await,
        Err(UpstreamError::HttpStatus { status: 400, .. })
    ));
    assert_eq!(upstream.call(call("large", json!({}))).await, Err(UpstreamError::TooLarge));
    assert_eq!(upstream.call(call("echo", json!({"odd": 2}))).await.unwrap(), json!({"odd": 2}));
    drop(stream);
    let died = upstream.call(call("die", json!({}))).await;
    assert!(matches!(died, Err(UpstreamError::Closed { may_have_run: true, .. })), "{died:?}");
    assert!(matches!(upstream.ended().await, EndReason::Lost(_)));
}

#[tokio::test]
async fn messages_are_not_posted_to_other_origin() {
    let (_served, target, _server) = serve_sse("http://127.0.0.1:9/messages").await;
    let (upstream, _incoming) = connect(Target::Sse(target)).await;
    assert!(matches!(upstream, Err(UpstreamError::Refused(reason)) if reason.contains("origin")));
}

#[tokio::test]
async fn remote_falls_back_to_sse() {
    let (_served, target, _server) = serve_sse("/messages").await;
    let (upstream, _incoming) = connect(Target::Remote(target)).await;
    assert_eq!(upstream.unwrap().call(call("echo", json!({"odd": 1}))).await.unwrap(), json!({"odd": 1}));
}

#[tokio::test]
async fn stream_without_message_url_is_rejected() {
    let router = Router::new().route("/sse", get(async || events(stream::repeat_with(|| ": wait\n\n".repeat(1000)))));
    let served = serve(router).await;
    let (upstream, _incoming) = connect(Target::Sse(remote_target(format!("http://{}/sse", served.address)))).await;
    assert!(matches!(upstream, Err(UpstreamError::Refused(reason)) if reason.contains("URL")));
}
