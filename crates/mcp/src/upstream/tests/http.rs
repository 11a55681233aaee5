//! Streamable HTTP, in both eras, with servers that lose sessions, break off, send too much.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Redirect};
use axum::routing::any;
use ringfence_entries::RemoteSettings;
use serde_json::json;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::loopback::{Served, Streamable, call, connect, serve, settings};
use crate::upstream::{Era, Incoming, Outgoing, RpcError, Upstream, UpstreamError, Wire};

struct Connected {
    upstream: Upstream,
    server: Streamable,
    say: mpsc::Sender<String>,
    incoming: mpsc::Receiver<Incoming>,
    _served: Served,
}

async fn connected(is_modern: bool, lost: StatusCode) -> Connected {
    let (server, say) = Streamable::new(is_modern, lost);
    let (served, settings) = server.serve().await;
    let (upstream, incoming) = connect(Wire::Http(settings)).await;
    Connected { upstream: upstream.unwrap(), server, say, incoming, _served: served }
}

async fn legacy() -> Connected {
    connected(false, StatusCode::NOT_FOUND).await
}

fn tool(name: &str) -> Outgoing {
    call("tools/call", json!({"name": name, "_meta": {"progressToken": "mine"}}))
}

#[tokio::test]
async fn a_legacy_server_has_a_session_from_beginning_to_end() {
    let Connected { upstream, server, say, mut incoming, _served } = legacy().await;
    assert_eq!(upstream.era(), Era::Legacy("2025-11-25".into()));
    assert_eq!(upstream.call(tool("json")).await.unwrap(), json!({"name": "json"}));
    let seen = server.seen("tools/call").remove(0);
    assert_eq!(seen.header("mcp-session-id"), Some("session-1"));
    assert_eq!(seen.header("mcp-protocol-version"), Some("2025-11-25"));
    assert_eq!(seen.header("x-secret"), Some("s3cret"));
    assert_eq!(seen.header("accept"), Some("application/json, text/event-stream"));
    assert_eq!(seen.header("mcp-method"), None);
    assert!(server.seen("initialize")[0].header("mcp-session-id").is_none());
    // What is said outside of calls.
    say.send("data: {\"method\":\"notifications/tools/list_changed\"}\n\n".into()).await.unwrap();
    assert!(matches!(incoming.recv().await, Some(Incoming::Notification { .. })));
    upstream.close().await;
    let farewell = server.seen("DELETE").remove(0);
    assert_eq!(farewell.header("mcp-session-id"), Some("session-1"));
}

#[tokio::test]
async fn a_modern_request_says_all_in_its_headers() {
    let Connected { upstream, server, say: _say, incoming: _incoming, _served } =
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
async fn what_comes_on_the_stream_of_a_call_belongs_to_it() {
    let Connected { upstream, server, say: _say, incoming: _incoming, _served } = legacy().await;
    let (related, mut heard) = mpsc::channel(8);
    // Another call does not make it unclear.
    let (more, _more) = mpsc::channel(8);
    let other = tokio::spawn({
        let upstream = upstream.clone();
        async move { upstream.call(Outgoing { related: Some(more), ..tool("hang") }).await }
    });
    let result = upstream.call(Outgoing { related: Some(related), ..tool("stream") }).await;
    assert_eq!(result.unwrap(), json!({"streamed": true}));
    let Some(Incoming::Notification { params: Some(params), .. }) = heard.recv().await else { panic!() };
    assert_eq!(params["progressToken"], "mine");
    let Some(Incoming::Notification { method, .. }) = heard.recv().await else { panic!() };
    assert_eq!(method, "notifications/message");
    let Some(Incoming::Request { answer, .. }) = heard.recv().await else { panic!() };
    answer.send(Ok(json!({"action": "decline"}))).unwrap();
    while server.answers().is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(server.answers(), [json!({"jsonrpc": "2.0", "id": "q", "result": {"action": "decline"}})]);
    other.abort();
}

#[tokio::test]
async fn a_lost_session_is_opened_again_unseen() {
    for lost in [StatusCode::NOT_FOUND, StatusCode::BAD_REQUEST] {
        let Connected { upstream, server, say: _say, incoming: _incoming, _served } = connected(false, lost).await;
        server.forget();
        // All find out at once; one opens the new session.
        let calls = (0..5).map(|_| upstream.call(tool("json")));
        for result in futures_util::future::join_all(calls).await {
            assert_eq!(result.unwrap(), json!({"name": "json"}));
        }
        assert_eq!(server.seen("initialize").len(), 2, "{lost}");
        assert_eq!(server.seen("tools/call").last().unwrap().header("mcp-session-id"), Some("session-3"));
        assert_eq!(upstream.call(tool("again")).await.unwrap(), json!({"name": "again"}));
    }
}

#[tokio::test]
async fn a_stream_that_breaks_is_taken_up_again_where_the_server_allows() {
    let Connected { upstream, server: _server, say: _say, incoming: _incoming, _served } = legacy().await;
    assert_eq!(upstream.call(tool("resume")).await.unwrap(), json!("resumed"));
}

#[tokio::test]
async fn cancelling_closes_the_stream_and_tells_a_legacy_server() {
    for is_modern in [true, false] {
        let Connected { upstream, server, say: _say, incoming: _incoming, _served } =
            connected(is_modern, StatusCode::NOT_FOUND).await;
        let cancel = CancellationToken::new();
        let outgoing = Outgoing { cancel: cancel.clone(), ..tool("hang") };
        let (result, ()) = tokio::join!(upstream.call(outgoing), async {
            server.until_seen("tools/call").await;
            cancel.cancel();
        });
        assert_eq!(result, Err(UpstreamError::Cancelled));
        server.hung_up().await;
        if !is_modern {
            let cancelled = server.until_seen("notifications/cancelled").await;
            assert_eq!(cancelled.body["params"]["requestId"], server.seen("tools/call")[0].body["id"]);
        }
    }
}

#[tokio::test]
async fn a_bad_answer_fails_its_call_only() {
    let Connected { upstream, server: _server, say: _say, incoming: _incoming, _served } = legacy().await;
    for name in ["break", "noise", "other", "error"] {
        let result = upstream.call(tool(name)).await;
        assert!(matches!(result, Err(UpstreamError::Closed { may_have_run: true, .. })), "{name}: {result:?}");
    }
    for name in ["endless", "large"] {
        assert_eq!(upstream.call(tool(name)).await, Err(UpstreamError::TooLarge), "{name}");
    }
    assert!(matches!(upstream.call(tool("denied")).await, Err(UpstreamError::Denied { status: 403, .. })));
    let invalid = upstream.call(tool("invalid")).await;
    assert_eq!(invalid, Err(UpstreamError::Rpc(RpcError::new(-32602, "bad"))));
    let silent = Outgoing { deadline: Some(Duration::from_millis(50)), ..tool("hang") };
    assert_eq!(upstream.call(silent).await, Err(UpstreamError::TimedOut));
    assert_eq!(upstream.call(tool("json")).await.unwrap(), json!({"name": "json"}));
}

#[tokio::test]
async fn nobody_at_the_address_means_that_nothing_ran() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let (upstream, _incoming) = connect(Wire::Http(settings(format!("http://{address}/secret-path")))).await;
    let Err(error) = upstream else { panic!() };
    assert!(matches!(error, UpstreamError::Closed { may_have_run: false, .. }));
    assert!(!error.to_string().contains("secret"), "{error}");
}

#[tokio::test]
async fn a_redirect_to_elsewhere_is_not_followed() {
    let seen: Arc<Mutex<Vec<HeaderMap>>> = Arc::default();
    let elsewhere = serve(Router::new().fallback({
        let seen = Arc::clone(&seen);
        async move |headers: HeaderMap| seen.lock().unwrap().push(headers)
    }))
    .await;
    let target = format!("http://{}/mcp", elsewhere.address);
    let here = serve(Router::new().fallback(async move || Redirect::temporary(&target))).await;
    let (upstream, _incoming) = connect(Wire::Http(settings(format!("http://{}/", here.address)))).await;
    assert!(matches!(upstream, Err(UpstreamError::Denied { status: 307, .. })));
    assert!(seen.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_redirect_at_home_is_followed() {
    let (server, _say) = Streamable::new(true, StatusCode::NOT_FOUND);
    let (_served, real) = server.serve().await;
    let (_, port) = real.url.trim_end_matches("/mcp").rsplit_once(':').unwrap();
    // The same origin can only be the same server: its own path redirects.
    let settings = RemoteSettings { url: format!("http://127.0.0.1:{port}/moved"), ..real.clone() };
    let (upstream, _incoming) = connect(Wire::Http(settings)).await;
    assert!(upstream.unwrap().era().is_modern());
}

#[tokio::test]
async fn remote_falls_back_on_three_statuses_only() {
    for (status, is_tried) in [(400, true), (404, true), (405, true), (401, false), (403, false), (500, false)] {
        let gets = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&gets);
        let refuse = async move |method: axum::http::Method| {
            counted.fetch_add(usize::from(method == "GET"), Ordering::Relaxed);
            StatusCode::from_u16(status).unwrap().into_response()
        };
        let served = serve(Router::new().route("/mcp", any(refuse))).await;
        let (upstream, _incoming) = connect(Wire::Remote(settings(format!("http://{}/mcp", served.address)))).await;
        assert!(upstream.is_err());
        assert_eq!(gets.load(Ordering::Relaxed) > 0, is_tried, "{status}");
    }
}

#[tokio::test]
async fn remote_prefers_streamable() {
    let (server, _say) = Streamable::new(false, StatusCode::NOT_FOUND);
    let (_served, settings) = server.serve().await;
    let (upstream, _incoming) = connect(Wire::Remote(settings)).await;
    assert_eq!(upstream.unwrap().call(tool("json")).await.unwrap(), json!({"name": "json"}));
}

#[tokio::test]
async fn a_url_that_is_none_is_refused_without_repeating_it() {
    for url in ["not a url s3cret", "ftp://s3cret/", "file:///s3cret"] {
        let (upstream, _incoming) = connect(Wire::Http(RemoteSettings::new(url))).await;
        let Err(UpstreamError::Refused(why)) = upstream else { panic!() };
        assert!(!why.contains("s3cret"), "{why}");
    }
    let mut settings = RemoteSettings::new("http://127.0.0.1:1/");
    settings.headers.insert("x".into(), "s3cret\r\ny: z".into());
    let (upstream, _incoming) = connect(Wire::Http(settings)).await;
    assert!(matches!(upstream, Err(UpstreamError::Refused(why)) if !why.contains("s3cret")));
}

#[tokio::test]
async fn a_call_without_a_limit_takes_that_of_the_entry() {
    let (server, _say) = Streamable::new(true, StatusCode::NOT_FOUND);
    let (_served, settings) = server.serve().await;
    let settings = RemoteSettings { sse_read_timeout: Duration::from_millis(50), ..settings };
    let (upstream, _incoming) = connect(Wire::Http(settings)).await;
    let outgoing = Outgoing { deadline: None, ..tool("hang") };
    assert_eq!(upstream.unwrap().call(outgoing).await, Err(UpstreamError::TimedOut));
}
