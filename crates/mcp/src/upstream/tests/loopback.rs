//! Servers on loopback: a streamable one with the manners of either era.

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
use ringfence_entries::RemoteSettings;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::peer::who;
use crate::upstream::large_message_slots::Slots;
use crate::upstream::rpc::Side;
use crate::upstream::{ConnectOptions, Eras, Incoming, Outgoing, Upstream, UpstreamError, Wire};

/// No limit of these tests' own: real time passes in them, on machines that may be busy.
pub(super) const LONG: Duration = Duration::from_secs(300);

/// A call that is not cut short.
pub(super) fn call(method: &str, params: Value) -> Outgoing {
    Outgoing { deadline: Some(LONG), ..super::peer::call(method, params) }
}

/// Serves until it is dropped.
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

pub(super) fn settings(url: String) -> RemoteSettings {
    let mut settings = RemoteSettings::new(url);
    settings.headers.insert("x-secret".into(), "s3cret".into());
    settings.timeout = LONG;
    settings
}

pub(super) async fn connect(wire: Wire) -> (Result<Upstream, UpstreamError>, mpsc::Receiver<Incoming>) {
    connect_sharing(&Slots::shared(), wire).await
}

/// The same, with slots of the test's own.
pub(super) async fn connect_sharing(
    slots: &Slots,
    wire: Wire,
) -> (Result<Upstream, UpstreamError>, mpsc::Receiver<Incoming>) {
    let (unrelated, incoming) = mpsc::channel(8);
    let options = ConnectOptions { deadline: LONG, eras: Eras::Auto };
    let side = Side { who: who(), unrelated, slots: slots.clone() };
    (Upstream::connect_as(wire, side, options).await, incoming)
}

pub(super) fn events(stream: impl Stream<Item = String> + Send + 'static) -> Response {
    let body = Body::from_stream(stream.map(Ok::<_, Infallible>));
    ([(header::CONTENT_TYPE, "text/event-stream; charset=utf-8")], body).into_response()
}

pub(super) fn event(message: &Value) -> String {
    format!("event: message\r\ndata: {message}\r\n\r\n")
}

pub(super) fn json_answer(id: &Value, result: &Value) -> Response {
    axum::Json(json!({"jsonrpc": "2.0", "id": id, "result": result})).into_response()
}

/// A request as the server saw it.
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

/// A streamable server.
#[derive(Clone)]
pub(super) struct Streamable(Arc<Inner>);

struct Inner {
    is_modern: bool,
    /// How a session that is not known is told.
    lost: StatusCode,
    seen: Mutex<Vec<Seen>>,
    sessions: Mutex<usize>,
    /// What is said outside of calls.
    unasked: Mutex<Option<mpsc::Receiver<String>>>,
    /// Cancelled when the stream of a call that hangs is closed by the client.
    hung_up: CancellationToken,
}

impl Streamable {
    pub(super) fn new(is_modern: bool, lost: StatusCode) -> (Self, mpsc::Sender<String>) {
        let (say, unasked) = mpsc::channel(8);
        let inner = Inner {
            is_modern,
            lost,
            seen: Mutex::default(),
            sessions: Mutex::default(),
            unasked: Mutex::new(Some(unasked)),
            hung_up: CancellationToken::new(),
        };
        (Self(Arc::new(inner)), say)
    }

    pub(super) async fn serve(&self) -> (Served, RemoteSettings) {
        let served = serve(
            Router::new()
                .route("/mcp", any(handle))
                .route("/moved", any(async || Redirect::permanent("/mcp")))
                .with_state(self.clone()),
        )
        .await;
        let settings = settings(format!("http://{}/mcp", served.address));
        (served, settings)
    }

    pub(super) fn seen(&self, method: &str) -> Vec<Seen> {
        let seen = self.0.seen.lock().unwrap();
        seen.iter().filter(|seen| seen.body["method"] == method || seen.method == method).cloned().collect()
    }

    pub(super) fn answers(&self) -> Vec<Value> {
        let seen = self.0.seen.lock().unwrap();
        seen.iter().filter(|seen| seen.body.get("result").is_some()).map(|seen| seen.body.clone()).collect()
    }

    /// Waits until a message of that method has come.
    pub(super) async fn until_seen(&self, method: &str) -> Seen {
        loop {
            if let Some(seen) = self.seen(method).pop() {
                return seen;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// From now on no session is known.
    pub(super) fn forget(&self) {
        *self.0.sessions.lock().unwrap() += 1;
    }

    pub(super) async fn hung_up(&self) {
        self.0.hung_up.cancelled().await;
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
            json_answer(&body["id"], &json!({"supportedVersions": ["2026-07-28"], "capabilities": {}}))
        }
        ("POST", Some("initialize")) if !server.0.is_modern => {
            let current = {
                let mut sessions = server.0.sessions.lock().unwrap();
                *sessions += 1;
                format!("session-{sessions}")
            };
            let answer = json_answer(&body["id"], &json!({"protocolVersion": "2025-11-25", "capabilities": {}}));
            ([("mcp-session-id", current)], answer).into_response()
        }
        ("POST", Some("server/discover")) => (StatusCode::BAD_REQUEST, axum::Json(unknown)).into_response(),
        _ if !is_known => (server.0.lost, axum::Json(unknown)).into_response(),
        ("POST", _) if body.get("id").is_none() || body.get("method").is_none() => StatusCode::ACCEPTED.into_response(),
        ("POST", Some("tools/list")) => json_answer(
            &body["id"],
            &json!({"tools": [{"name": "region",
            "inputSchema": {"properties": {"where": {"type": "string", "x-mcp-header": "Region"}}}}]}),
        ),
        ("POST", _) => tool(&server, &body),
        ("GET", _) if seen.header("last-event-id") == Some("e-1") => {
            events(stream::iter([event(&json!({"jsonrpc": "2.0", "id": seen_id(&server), "result": "resumed"}))]))
        }
        ("GET", _) if !server.0.is_modern => {
            let Some(unasked) = server.0.unasked.lock().unwrap().take() else {
                return StatusCode::METHOD_NOT_ALLOWED.into_response();
            };
            events(stream::unfold(unasked, async |mut unasked| Some((unasked.recv().await?, unasked))))
        }
        ("DELETE", _) => StatusCode::OK.into_response(),
        _ => StatusCode::METHOD_NOT_ALLOWED.into_response(),
    }
}

/// The id of the last call.
fn seen_id(server: &Streamable) -> Value {
    server.seen("tools/call").last().unwrap().body["id"].clone()
}

fn tool(server: &Streamable, body: &Value) -> Response {
    let id = &body["id"];
    let answer = json!({"jsonrpc": "2.0", "id": id, "result": {"streamed": true}});
    match body["params"]["name"].as_str().unwrap_or_default() {
        "stream" => {
            let token = &body["params"]["_meta"]["progressToken"];
            let progress = json!({"jsonrpc": "2.0", "method": "notifications/progress",
                "params": {"progressToken": token, "progress": 1}});
            let log = json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": "log"}});
            let ask = json!({"jsonrpc": "2.0", "id": "q", "method": "elicitation/create", "params": {}});
            let parts = [": hello\n\n".to_owned(), event(&progress), event(&log), event(&ask), event(&answer)];
            events(stream::iter(parts))
        }
        "break" => events(stream::iter([": hello\n\n".to_owned()])),
        "resume" => events(stream::iter(["id: e-1\nretry: 100\ndata:\n\n".to_owned()])),
        "endless" => {
            let first = stream::iter(["data: ".to_owned()]);
            events(first.chain(stream::repeat_with(|| "x".repeat(1 << 20))))
        }
        "hang" => {
            let guard = server.0.hung_up.clone().drop_guard();
            events(stream::iter([": hello\n\n".to_owned()]).chain(stream::pending().map(move |()| {
                let _ = &guard;
                String::new()
            })))
        }
        "sized" => {
            let answer = format!("{{\"id\":{id},\"result\":\"{}\"}}", "x".repeat(size(body)));
            ([(header::CONTENT_TYPE, "application/json")], answer).into_response()
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
        "large" => json_answer(id, &json!("x".repeat(17 << 20))),
        "noise" => ([(header::CONTENT_TYPE, "application/json")], "<html>").into_response(),
        "other" => json_answer(&json!(99_999), &json!({})),
        "error" => StatusCode::BAD_GATEWAY.into_response(),
        "denied" => StatusCode::FORBIDDEN.into_response(),
        "invalid" => {
            let error = json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32602, "message": "bad"}});
            (StatusCode::BAD_REQUEST, axum::Json(error)).into_response()
        }
        name => json_answer(id, &json!({"name": name})),
    }
}

/// How large an answer the caller wants, in bytes.
fn size(body: &Value) -> usize {
    usize::try_from(body["params"]["arguments"]["megabytes"].as_u64().unwrap()).unwrap() * 1_000_000
}
