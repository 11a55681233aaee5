//! HTTP servers on loopback, among them one for streamable HTTP in either era.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::any;
use futures_util::{Stream, StreamExt, stream};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::scripted_server::client_identity;
use crate::upstream::connection::ClientSide;
use crate::upstream::large_message_slots::Slots;
use crate::upstream::{ConnectOptions, Eras, Incoming, OutgoingCall, RemoteTarget, Target, Upstream, UpstreamError};

/// Timeout of tests that run in real time, on machines that may be busy.
pub(super) const LONG: Duration = Duration::from_secs(300);

/// A call with a long timeout.
pub(super) fn call(method: &str, params: Value) -> OutgoingCall {
    OutgoingCall { idle_timeout: Some(LONG), ..super::scripted_server::call(method, params) }
}

/// A server that runs until this is dropped.
pub(super) struct Served {
    pub(super) address: SocketAddr,
    _stop: DropGuard,
}

pub(super) async fn serve(router: Router) -> Served {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    tokio::spawn(async move {
        let _ = stopped.run_until_cancelled(axum::serve(listener, router).into_future()).await;
    });
    Served { address, _stop: stop.drop_guard() }
}

/// A target without headers.
pub(super) fn plain_target(url: impl Into<String>) -> RemoteTarget {
    RemoteTarget { url: url.into(), headers: BTreeMap::new(), timeout: LONG, read_timeout: LONG }
}

pub(super) fn remote_target(url: String) -> RemoteTarget {
    let headers = [("x-secret".into(), "s3cret".into())].into();
    RemoteTarget { headers, ..plain_target(url) }
}

pub(super) async fn connect(target: Target) -> (Result<Upstream, UpstreamError>, mpsc::Receiver<Incoming>) {
    connect_with_slots(&Slots::shared(), target).await
}

/// Connects with slots of the test instead of the shared ones.
pub(super) async fn connect_with_slots(
    slots: &Slots,
    target: Target,
) -> (Result<Upstream, UpstreamError>, mpsc::Receiver<Incoming>) {
    let (unrelated, incoming) = mpsc::channel(8);
    let options = ConnectOptions { timeout: LONG, eras: Eras::Auto };
    let side = ClientSide { client: client_identity(), unrelated, slots: slots.clone() };
    (Upstream::connect_from(target, side, options).await, incoming)
}

pub(super) fn events(stream: impl Stream<Item = String> + Send + 'static) -> Response {
    let body = Body::from_stream(stream.map(Ok::<_, Infallible>));
    ([(header::CONTENT_TYPE, "text/event-stream; charset=utf-8")], body).into_response()
}

pub(super) fn event(message: &Value) -> String {
    format!("event: message\r\ndata: {message}\r\n\r\n")
}

pub(super) fn json_response(id: &Value, result: &Value) -> Response {
    axum::Json(json!({"jsonrpc": "2.0", "id": id, "result": result})).into_response()
}

/// A request that the server received.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    pub(super) method: Method,
    pub(super) headers: HeaderMap,
    pub(super) body: Value,
}

impl Seen {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }
}

/// A server for streamable HTTP.
#[derive(Clone)]
pub(super) struct Streamable(Arc<Inner>);

struct Inner {
    is_modern: bool,
    /// The status for requests with an unknown session.
    lost_status: StatusCode,
    seen: Mutex<Vec<Seen>>,
    sessions: Mutex<usize>,
    /// The events of the notification stream.
    notifications: Mutex<Option<mpsc::Receiver<String>>>,
    /// Cancelled when the client closes the stream of a call to `hang`.
    stream_closed: CancellationToken,
}

impl Streamable {
    pub(super) fn new(is_modern: bool, lost_status: StatusCode) -> (Self, mpsc::Sender<String>) {
        let (send, notifications) = mpsc::channel(8);
        let inner = Inner {
            is_modern,
            lost_status,
            seen: Mutex::default(),
            sessions: Mutex::default(),
            notifications: Mutex::new(Some(notifications)),
            stream_closed: CancellationToken::new(),
        };
        (Self(Arc::new(inner)), send)
    }

    pub(super) async fn serve(&self) -> (Served, RemoteTarget) {
        let served = serve(
            Router::new()
                .route("/mcp", any(handle))
                .route("/moved", any(async || Redirect::permanent("/mcp")))
                .with_state(self.clone()),
        )
        .await;
        let target = remote_target(format!("http://{}/mcp", served.address));
        (served, target)
    }

    pub(super) fn seen(&self, method: &str) -> Vec<Seen> {
        let seen = self.0.seen.lock().unwrap();
        seen.iter().filter(|seen| seen.body["method"] == method || seen.method == method).cloned().collect()
    }

    pub(super) fn responses(&self) -> Vec<Value> {
        let seen = self.0.seen.lock().unwrap();
        seen.iter().filter(|seen| seen.body.get("result").is_some()).map(|seen| seen.body.clone()).collect()
    }

    /// Waits for a message with this method.
    pub(super) async fn wait_for(&self, method: &str) -> Seen {
        loop {
            if let Some(seen) = self.seen(method).pop() {
                return seen;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Forgets all sessions.
    pub(super) fn forget_sessions(&self) {
        *self.0.sessions.lock().unwrap() += 1;
    }

    pub(super) async fn stream_closed(&self) {
        self.0.stream_closed.cancelled().await;
    }
}

async fn handle(State(server): State<Streamable>, method: Method, headers: HeaderMap, body: Bytes) -> Response {
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let seen = Seen { method: method.clone(), headers, body: body.clone() };
    server.0.seen.lock().unwrap().push(seen.clone());
    let current = format!("session-{}", server.0.sessions.lock().unwrap());
    let is_known = server.0.is_modern || seen.header("mcp-session-id") == Some(&current);
    let unknown = json!({"jsonrpc": "2.0", "id": null, "error": {"code": -32000, "message": "No valid Session ID"}});
    match (method.as_str(), body["method"].as_str()) {
        ("POST", Some("server/discover")) if server.0.is_modern => {
            json_response(&body["id"], &json!({"supportedVersions": ["2026-07-28"], "capabilities": {}}))
        }
        ("POST", Some("initialize")) if !server.0.is_modern => {
            let current = {
                let mut sessions = server.0.sessions.lock().unwrap();
                *sessions += 1;
                format!("session-{sessions}")
            };
            let response = json_response(&body["id"], &json!({"protocolVersion": "2025-11-25", "capabilities": {}}));
            ([("mcp-session-id", current)], response).into_response()
        }
        ("POST", Some("server/discover")) => (StatusCode::BAD_REQUEST, axum::Json(unknown)).into_response(),
        _ if !is_known => (server.0.lost_status, axum::Json(unknown)).into_response(),
        ("POST", _) if body.get("id").is_none() || body.get("method").is_none() => StatusCode::ACCEPTED.into_response(),
        ("POST", Some("tools/list")) => json_response(
            &body["id"],
            &json!({"tools": [{"name": "region",
            "inputSchema": {"properties": {"where": {"type": "string", "x-mcp-header": "Region"}}}}]}),
        ),
        ("POST", _) => tool(&server, &body),
        ("GET", _) if seen.header("last-event-id") == Some("e-1") => {
            events(stream::iter([event(&json!({"jsonrpc": "2.0", "id": last_call_id(&server), "result": "resumed"}))]))
        }
        ("GET", _) if !server.0.is_modern => {
            let Some(notifications) = server.0.notifications.lock().unwrap().take() else {
                return StatusCode::METHOD_NOT_ALLOWED.into_response();
            };
            events(stream::unfold(notifications, async |mut notifications| {
                Some((notifications.recv().await?, notifications))
            }))
        }
        ("DELETE", _) => StatusCode::OK.into_response(),
        _ => StatusCode::METHOD_NOT_ALLOWED.into_response(),
    }
}

/// Returns the id of the last tool call.
fn last_call_id(server: &Streamable) -> Value {
    server.seen("tools/call").last().unwrap().body["id"].clone()
}

fn tool(server: &Streamable, body: &Value) -> Response {
    let id = &body["id"];
    let response = json!({"jsonrpc": "2.0", "id": id, "result": {"streamed": true}});
    match body["params"]["name"].as_str().unwrap_or_default() {
        "stream" => {
            let token = &body["params"]["_meta"]["progressToken"];
            let progress = json!({"jsonrpc": "2.0", "method": "notifications/progress",
                "params": {"progressToken": token, "progress": 1}});
            let log = json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": "log"}});
            let request = json!({"jsonrpc": "2.0", "id": "q", "method": "elicitation/create", "params": {}});
            let parts = [": hello\n\n".to_owned(), event(&progress), event(&log), event(&request), event(&response)];
            events(stream::iter(parts))
        }
        "break" => events(stream::iter([": hello\n\n".to_owned()])),
        "resume" => events(stream::iter(["id: e-1\nretry: 100\ndata:\n\n".to_owned()])),
        "endless" => {
            let first = stream::iter(["data: ".to_owned()]);
            events(first.chain(stream::repeat_with(|| "x".repeat(1 << 20))))
        }
        "hang" => {
            let guard = server.0.stream_closed.clone().drop_guard();
            events(stream::iter([": hello\n\n".to_owned()]).chain(stream::pending().map(move |()| {
                let _ = &guard;
                String::new()
            })))
        }
        "sized" => {
            let response = format!("{{\"id\":{id},\"result\":\"{}\"}}", "x".repeat(size(body)));
            ([(header::CONTENT_TYPE, "application/json")], response).into_response()
        }
        "sized stream" => {
            let first = stream::iter([format!("id: 1\ndata: {{\"id\":{id},\"result\":\"")]);
            let middle = stream::iter((0..size(body) / 1_000_000).map(|_| "x".repeat(1_000_000)));
            events(first.chain(middle).chain(stream::iter(["\"}\n\n".to_owned()])))
        }
        "stalled" => {
            let part = format!("data: {{\"id\":{id},\"result\":\"{}", "x".repeat(3_000_000));
            events(stream::iter([part]).chain(stream::pending()))
        }
        "large" => json_response(id, &json!("x".repeat(17 << 20))),
        "noise" => ([(header::CONTENT_TYPE, "application/json")], "<html>").into_response(),
        "other" => json_response(&json!(99_999), &json!({})),
        "error" => StatusCode::BAD_GATEWAY.into_response(),
        "denied" => StatusCode::FORBIDDEN.into_response(),
        "invalid" => {
            let error = json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32602, "message": "bad"}});
            (StatusCode::BAD_REQUEST, axum::Json(error)).into_response()
        }
        name => json_response(id, &json!({"name": name})),
    }
}

/// Returns the requested size of the result in bytes.
fn size(body: &Value) -> usize {
    usize::try_from(body["params"]["arguments"]["megabytes"].as_u64().unwrap()).unwrap() * 1_000_000
}
