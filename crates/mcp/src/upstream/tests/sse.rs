//! The transport of 2024-11-05.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures_util::{StreamExt, stream};
use ringfence_entries::RemoteSettings;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::loopback::{Served, call, connect, event, events, serve, settings};
use crate::upstream::{EndReason, Era, Incoming, UpstreamError, Wire};

/// One client at a time.
#[derive(Clone)]
pub(super) struct Old {
    endpoint: &'static str,
    stream: Arc<Mutex<Option<mpsc::Sender<String>>>>,
}

pub(super) async fn old(endpoint: &'static str) -> (Served, RemoteSettings, Old) {
    let old = Old { endpoint, stream: Arc::default() };
    let router = Router::new()
        .route("/sse", get(open).post(async || StatusCode::METHOD_NOT_ALLOWED))
        .route("/messages", axum::routing::post(post))
        .with_state(old.clone());
    let served = serve(router).await;
    let settings = settings(format!("http://{}/sse", served.address));
    (served, settings, old)
}

async fn open(State(old): State<Old>) -> Response {
    let (sender, receiver) = mpsc::channel(64);
    *old.stream.lock().unwrap() = Some(sender);
    let first = stream::iter([format!("event: endpoint\ndata: {}\n\n", old.endpoint)]);
    events(first.chain(stream::unfold(receiver, async |mut receiver| Some((receiver.recv().await?, receiver)))))
}

async fn post(State(old): State<Old>, headers: HeaderMap, axum::Json(body): axum::Json<Value>) -> Response {
    assert_eq!(headers["x-secret"], "s3cret");
    let stream = old.stream.lock().unwrap().clone().unwrap();
    let answer = |result: Value| event(&json!({"jsonrpc": "2.0", "id": body["id"], "result": result}));
    let said = match body["method"].as_str().unwrap_or_default() {
        "initialize" => answer(json!({"protocolVersion": "2024-11-05", "capabilities": {}})),
        "die" => {
            old.stream.lock().unwrap().take();
            return StatusCode::ACCEPTED.into_response();
        }
        "denied" => return StatusCode::BAD_REQUEST.into_response(),
        "large" => format!("data: {{\"id\":{},\"result\":\"{}\"}}\n\n", body["id"], "x".repeat(17 << 20)),
        "echo" => answer(body["params"].clone()),
        _ => return StatusCode::ACCEPTED.into_response(),
    };
    stream.send(said).await.unwrap();
    StatusCode::ACCEPTED.into_response()
}

#[tokio::test]
async fn messages_are_posted_and_answers_come_on_the_stream() {
    let (_served, settings, old) = old("/messages?session=1").await;
    let (upstream, mut incoming) = connect(Wire::Sse(settings)).await;
    let upstream = upstream.unwrap();
    assert_eq!(upstream.era(), Era::Legacy("2024-11-05".into()));
    assert_eq!(upstream.call(call("echo", json!({"odd": 1}))).await.unwrap(), json!({"odd": 1}));
    let stream = old.stream.lock().unwrap().clone().unwrap();
    stream.send(event(&json!({"jsonrpc": "2.0", "method": "notifications/message"}))).await.unwrap();
    assert!(matches!(incoming.recv().await, Some(Incoming::Notification { .. })));
    assert!(matches!(upstream.call(call("denied", json!({}))).await, Err(UpstreamError::Denied { status: 400, .. })));
    assert_eq!(upstream.call(call("large", json!({}))).await, Err(UpstreamError::TooLarge));
    assert_eq!(upstream.call(call("echo", json!({"odd": 2}))).await.unwrap(), json!({"odd": 2}));
    drop(stream);
    let died = upstream.call(call("die", json!({}))).await;
    assert!(matches!(died, Err(UpstreamError::Closed { may_have_run: true, .. })), "{died:?}");
    assert!(matches!(upstream.ended().await, EndReason::Lost(_)));
}

#[tokio::test]
async fn messages_are_not_posted_to_another_origin() {
    let (_served, settings, _old) = old("http://127.0.0.1:9/messages").await;
    let (upstream, _incoming) = connect(Wire::Sse(settings)).await;
    assert!(matches!(upstream, Err(UpstreamError::Refused(why)) if why.contains("origin")));
}

#[tokio::test]
async fn remote_finds_the_old_transport() {
    let (_served, settings, _old) = old("/messages").await;
    let (upstream, _incoming) = connect(Wire::Remote(settings)).await;
    assert_eq!(upstream.unwrap().call(call("echo", json!({"odd": 1}))).await.unwrap(), json!({"odd": 1}));
}

#[tokio::test]
async fn a_stream_that_never_names_an_address_is_left() {
    let router = Router::new().route("/sse", get(async || events(stream::repeat_with(|| ": wait\n\n".repeat(1000)))));
    let served = serve(router).await;
    let (upstream, _incoming) = connect(Wire::Sse(settings(format!("http://{}/sse", served.address)))).await;
    assert!(matches!(upstream, Err(UpstreamError::Refused(why)) if why.contains("address")));
}
