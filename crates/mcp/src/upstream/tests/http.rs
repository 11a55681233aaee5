//! Streamable HTTP in both eras, with servers that lose sessions, break streams and send too much.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Redirect};
use axum::routing::any;
use serde_json::json;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::http_servers::{Served, Streamable, call, connect, plain_target, remote_target, serve};
use crate::upstream::{Era, Incoming, OutgoingCall, RemoteTarget, RpcError, Target, Upstream, UpstreamError};

struct Connected {
    upstream: Upstream,
    server: Streamable,
    send: mpsc::Sender<String>,
    incoming: mpsc::Receiver<Incoming>,
    _served: Served,
}

async fn connected(is_modern: bool, lost_status: StatusCode) -> Connected {
    let (server, send) = Streamable::new(is_modern, lost_status);
    let (served, target) = server.serve().await;
    let (upstream, incoming) = connect(Target::Http(target)).await;
    Connected { upstream: upstream.unwrap(), server, send, incoming, _served: served }
}

async fn legacy() -> Connected {
    connected(false, StatusCode::NOT_FOUND).await
}

fn tool(name: &str) -> OutgoingCall {
    call("tools/call", json!({"name": name, "_meta": {"progressToken": "mine"}}))
}

#[tokio::test]
async fn legacy_session_is_used_and_deleted() {
    let Connected { upstream, server, send, mut incoming, _served } = legacy().await;
    assert_eq!(upstream.era(), Era::Legacy("2025-11-25".into()));
    assert_eq!(upstream.call(tool("json")).await.unwrap(), json!({"name": "json"}));
    let seen = server.seen("tools/call").remove(0);
    assert_eq!(seen.header("mcp-session-id"), Some("session-1"));
    assert_eq!(seen.header("mcp-protocol-version"), Some("2025-11-25"));
    assert_eq!(seen.header("x-secret"), Some("s3cret"));
    assert_eq!(seen.header("accept"), Some("application/json, text/event-stream"));
    assert_eq!(seen.header("mcp-method"), None);
    assert!(server.seen("initialize")[0].header("mcp-session-id").is_none());
    // A notification that belongs to no call.
    send.send("data: {\"method\":\"notifications/tools/list_changed\"}\n\n".into()).await.unwrap();
    assert!(matches!(incoming.recv().await, Some(Incoming::Notification { .. })));
    upstream.close().await;
    let delete = server.seen("DELETE").remove(0);
    assert_eq!(delete.header("mcp-session-id"), Some("session-1"));
}

#[tokio::test]
async fn modern_request_has_routing_headers() {
    let Connected { upstream, server, send: _send, incoming: _incoming, _served } =
        connected(true, StatusCode::NOT_FOUND).await;
    assert_eq!(upstream.era(), Era::Modern("2026-07-28".into()));
    assert_eq!(server.seen("server/discover")[0].header("mcp-method"), Some("server/discover"));
    upstream.list("tools/list", "tools").await.unwrap();
    let region = call("tools/call", json!({"name": "region", "arguments": {"where": "here"}}));
    assert_eq!(upstream.call(region).await.unwrap(), json!({"name": "region"}));
    let seen = server.seen("tools/call").remove(0);
    assert_eq!(seen.header("mcp-protocol-version"), Some("2026-07-28"));
    assert_eq!((seen.header("mcp-method"), seen.header("mcp-name")), (Some("tools/call"), Some("region")));
    assert_eq!(seen.header("mcp-param-region"), Some("here"));
    assert_eq!(seen.header("mcp-session-id"), None);
    assert_eq!(seen.body["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"], "2026-07-28");
    assert!(server.seen("GET").is_empty() && server.seen("initialize").is_empty());
}

#[tokio::test]
async fn messages_on_stream_of_call_belong_to_it() {
    let Connected { upstream, server, send: _send, incoming: _incoming, _served } = legacy().await;
    let (related, mut messages) = mpsc::channel(8);
    // A second call must not receive these messages.
    let (more, _more) = mpsc::channel(8);
    let other = tokio::spawn({
        let upstream = upstream.clone();
        async move { upstream.call(OutgoingCall { related: Some(more), ..tool("hang") }).await }
    });
    let result = upstream.call(OutgoingCall { related: Some(related), ..tool("stream") }).await;
    assert_eq!(result.unwrap(), json!({"streamed": true}));
    let Some(Incoming::Notification { params: Some(params), .. }) = messages.recv().await else { panic!() };
    assert_eq!(params["progressToken"], "mine");
    let Some(Incoming::Notification { method, .. }) = messages.recv().await else { panic!() };
    assert_eq!(method, "notifications/message");
    let Some(Incoming::Request { reply, .. }) = messages.recv().await else { panic!() };
    reply.send(Ok(json!({"action": "decline"}))).unwrap();
    while server.responses().is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(server.responses(), [json!({"jsonrpc": "2.0", "id": "q", "result": {"action": "decline"}})]);
    other.abort();
}

#[tokio::test]
async fn lost_session_is_reopened_transparently() {
    for lost_status in [StatusCode::NOT_FOUND, StatusCode::BAD_REQUEST] {
        let Connected { upstream, server, send: _send, incoming: _incoming, _served } =
            connected(false, lost_status).await;
        server.forget_sessions();
        // All calls are rejected at once; one of them reopens the session.
        let calls = (0..5).map(|_| upstream.call(tool("json")));
        for result in futures_util::future::join_all(calls).await {
            assert_eq!(result.unwrap(), json!({"name": "json"}));
        }
        assert_eq!(server.seen("initialize").len(), 2, "{lost_status}");
        assert_eq!(server.seen("tools/call").last().unwrap().header("mcp-session-id"), Some("session-3"));
        assert_eq!(upstream.call(tool("again")).await.unwrap(), json!({"name": "again"}));
    }
}

#[tokio::test]
async fn broken_stream_is_resumed() {
    let Connected { upstream, server: _server, send: _send, incoming: _incoming, _served } = legacy().await;
    assert_eq!(upstream.call(tool("resume")).await.unwrap(), json!("resumed"));
}

#[tokio::test]
async fn cancellation_closes_stream_and_notifies_legacy_server() {
    for is_modern in [true, false] {
        let Connected { upstream, server, send: _send, incoming: _incoming, _served } =
            connected(is_modern, StatusCode::NOT_FOUND).await;
        let cancel = CancellationToken::new();
        let outgoing = OutgoingCall { cancel: cancel.clone(), ..tool("hang") };
        let (result, ()) = tokio::join!(upstream.call(outgoing), async {
            server.wait_for("tools/call").await;
            cancel.cancel();
        });
        assert_eq!(result, Err(UpstreamError::Cancelled));
        server.stream_closed().await;
        if !is_modern {
            let cancelled = server.wait_for("notifications/cancelled").await;
            assert_eq!(cancelled.body["params"]["requestId"], server.seen("tools/call")[0].body["id"]);
        }
    }
}

#[tokio::test]
async fn bad_response_fails_only_its_call() {
    let Connected { upstream, server: _server, send: _send, incoming: _incoming, _served } = legacy().await;
    for name in ["break", "noise", "other", "error"] {
        let result = upstream.call(tool(name)).await;
        assert!(matches!(result, Err(UpstreamError::Closed { may_have_run: true, .. })), "{name}: {result:?}");
    }
    for name in ["endless", "large"] {
        assert_eq!(upstream.call(tool(name)).await, Err(UpstreamError::TooLarge), "{name}");
    }
    assert!(matches!(upstream.call(tool("denied")).await, Err(UpstreamError::HttpStatus { status: 403, .. })));
    let invalid = upstream.call(tool("invalid")).await;
    assert_eq!(invalid, Err(UpstreamError::Rpc(RpcError::new(-32602, "bad"))));
    let silent = OutgoingCall { idle_timeout: Some(Duration::from_millis(50)), ..tool("hang") };
    assert_eq!(upstream.call(silent).await, Err(UpstreamError::TimedOut));
    assert_eq!(upstream.call(tool("json")).await.unwrap(), json!({"name": "json"}));
}

#[tokio::test]
async fn refused_connection_means_that_nothing_ran() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let (upstream, _incoming) = connect(Target::Http(remote_target(format!("http://{address}/secret-path")))).await;
    let Err(error) = upstream else { panic!() };
    assert!(matches!(error, UpstreamError::Closed { may_have_run: false, .. }));
    assert!(!error.to_string().contains("secret"), "{error}");
}

#[tokio::test]
async fn redirect_to_other_origin_is_not_followed() {
    let seen: Arc<Mutex<Vec<HeaderMap>>> = Arc::default();
    let other = serve(Router::new().fallback({
        let seen = Arc::clone(&seen);
        async move |headers: HeaderMap| seen.lock().unwrap().push(headers)
    }))
    .await;
    let target = format!("http://{}/mcp", other.address);
    let origin = serve(Router::new().fallback(async move || Redirect::temporary(&target))).await;
    let (upstream, _incoming) = connect(Target::Http(remote_target(format!("http://{}/", origin.address)))).await;
    assert!(matches!(upstream, Err(UpstreamError::HttpStatus { status: 307, .. })));
    assert!(seen.lock().unwrap().is_empty());
}

#[tokio::test]
async fn redirect_within_origin_is_followed() {
    let (server, _send) = Streamable::new(true, StatusCode::NOT_FOUND);
    let (_served, real) = server.serve().await;
    let (_, port) = real.url.trim_end_matches("/mcp").rsplit_once(':').unwrap();
    // `/moved` of the same server redirects to `/mcp`.
    let target = RemoteTarget { url: format!("http://127.0.0.1:{port}/moved"), ..real.clone() };
    let (upstream, _incoming) = connect(Target::Http(target)).await;
    assert!(upstream.unwrap().era().is_modern());
}

#[tokio::test]
async fn remote_falls_back_to_sse_on_three_statuses_only() {
    for (status, is_tried) in [(400, true), (404, true), (405, true), (401, false), (403, false), (500, false)] {
        let gets = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&gets);
        let refuse = async move |method: axum::http::Method| {
            counted.fetch_add(usize::from(method == "GET"), Ordering::Relaxed);
            StatusCode::from_u16(status).unwrap().into_response()
        };
        let served = serve(Router::new().route("/mcp", any(refuse))).await;
        let (upstream, _incoming) =
            connect(Target::Remote(remote_target(format!("http://{}/mcp", served.address)))).await;
        assert!(upstream.is_err());
        assert_eq!(gets.load(Ordering::Relaxed) > 0, is_tried, "{status}");
    }
}

#[tokio::test]
async fn remote_prefers_streamable_http() {
    let (server, _send) = Streamable::new(false, StatusCode::NOT_FOUND);
    let (_served, target) = server.serve().await;
    let (upstream, _incoming) = connect(Target::Remote(target)).await;
    assert_eq!(upstream.unwrap().call(tool("json")).await.unwrap(), json!({"name": "json"}));
}

#[tokio::test]
async fn errors_about_url_and_headers_do_not_contain_them() {
    for url in ["not a url s3cret", "ftp://s3cret/", "file:///s3cret"] {
        let (upstream, _incoming) = connect(Target::Http(plain_target(url))).await;
        let Err(UpstreamError::Refused(reason)) = upstream else { panic!() };
        assert!(!reason.contains("s3cret"), "{reason}");
    }
    let mut target = plain_target("http://127.0.0.1:1/");
    target.headers.insert("x".into(), "s3cret\r\ny: z".into());
    let (upstream, _incoming) = connect(Target::Http(target)).await;
    assert!(matches!(upstream, Err(UpstreamError::Refused(reason)) if !reason.contains("s3cret")));
}

#[tokio::test]
async fn call_without_timeout_uses_read_timeout_of_target() {
    let (server, _send) = Streamable::new(true, StatusCode::NOT_FOUND);
    let (_served, target) = server.serve().await;
    let target = RemoteTarget { read_timeout: Duration::from_millis(50), ..target };
    let (upstream, _incoming) = connect(Target::Http(target)).await;
    let outgoing = OutgoingCall { idle_timeout: None, ..tool("hang") };
    assert_eq!(upstream.unwrap().call(outgoing).await, Err(UpstreamError::TimedOut));
}
