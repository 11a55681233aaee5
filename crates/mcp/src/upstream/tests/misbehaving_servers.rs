//! Servers over stdio that violate the protocol. The connection survives where possible.

use std::sync::atomic::Ordering;

use serde_json::json;

use super::scripted_server::{ScriptedServer, call, legacy};
use crate::upstream::{EndReason, Incoming, OutgoingCall, Upstream, UpstreamError};

async fn assert_responds(upstream: &Upstream, server: &mut ScriptedServer) {
    let (result, ()) = tokio::join!(upstream.call(call("still", json!({}))), async {
        let request = server.recv().await;
        assert_eq!(request["method"], "still");
        server.respond(&request, json!("there")).await;
    });
    assert_eq!(result.unwrap(), json!("there"));
}

#[tokio::test]
async fn line_of_100_mb_fails_only_its_call() {
    let (upstream, mut server, _incoming) = legacy().await;
    let (large, other, ()) =
        tokio::join!(upstream.call(call("large", json!({}))), upstream.call(call("other", json!({}))), async {
            let (large, other) = (server.recv().await, server.recv().await);
            server.send_raw(&format!("{{\"jsonrpc\":\"2.0\",\"id\":{},\"result\":\"", large["id"])).await;
            let megabyte = "x".repeat(1_000_000);
            for _ in 0..100 {
                server.send_raw(&megabyte).await;
            }
            server.send_raw("\"}\n").await;
            server.respond(&other, json!(1)).await;
        });
    assert_eq!(large, Err(UpstreamError::TooLarge));
    assert_eq!(other.unwrap(), json!(1));
    assert_eq!(upstream.counters().oversized.load(Ordering::Relaxed), 1);
    assert_responds(&upstream, &mut server).await;
}

#[tokio::test]
async fn invalid_lines_are_skipped_up_to_a_limit() {
    let (upstream, mut server, _incoming) = legacy().await;
    for _ in 0..99 {
        server.send_raw("npm warn something\n\n").await;
    }
    assert_responds(&upstream, &mut server).await;
    assert_eq!(upstream.counters().malformed.load(Ordering::Relaxed), 99);
    let (result, ()) = tokio::join!(upstream.call(call("m", json!({}))), async {
        server.recv().await;
        for _ in 0..100 {
            server.send_raw("{]\n").await;
        }
    });
    assert!(matches!(result, Err(UpstreamError::Closed { may_have_run: true, .. })));
    let EndReason::Lost(reason) = upstream.ended().await else { panic!() };
    assert!(reason.contains("not JSON-RPC"), "{reason}");
    assert!(server.is_closed().await);
}

#[tokio::test]
async fn duplicate_and_unknown_responses_are_only_counted() {
    let (upstream, mut server, _incoming) = legacy().await;
    let (result, ()) = tokio::join!(upstream.call(call("m", json!({}))), async {
        let request = server.recv().await;
        server.send(json!({"jsonrpc": "2.0", "id": 4711, "result": "forged"})).await;
        server.send(json!({"jsonrpc": "2.0", "id": "x", "result": "forged"})).await;
        server.send(json!({"jsonrpc": "2.0", "id": null, "result": "forged"})).await;
        server.respond(&request, json!("first")).await;
        server.respond(&request, json!("second")).await;
    });
    assert_eq!(result.unwrap(), json!("first"));
    assert_responds(&upstream, &mut server).await;
    assert_eq!(upstream.counters().unknown_responses.load(Ordering::Relaxed), 4);
}

#[tokio::test]
async fn call_may_have_run_if_server_dies() {
    let (upstream, mut server, _incoming) = legacy().await;
    let (result, ()) = tokio::join!(upstream.call(call("m", json!({}))), async {
        server.recv().await;
        drop(server);
    });
    assert!(matches!(result, Err(UpstreamError::Closed { may_have_run: true, .. })));
    assert!(matches!(upstream.ended().await, EndReason::Lost(_)));
    let result = upstream.call(call("m", json!({}))).await;
    assert!(matches!(result, Err(UpstreamError::Closed { may_have_run: false, .. })));
}

#[tokio::test]
async fn repeated_cursor_fails_list() {
    let (upstream, mut server, _incoming) = legacy().await;
    let (tools, ()) = tokio::join!(upstream.list("tools/list", "tools"), async {
        for cursor in ["a", "b", "a"] {
            let page = server.recv().await;
            server.respond(&page, json!({"tools": [{}], "nextCursor": cursor})).await;
        }
    });
    assert!(matches!(tools, Err(UpstreamError::Refused(reason)) if reason.contains("cursor")));
}

#[tokio::test]
async fn endless_list_is_rejected() {
    let (upstream, mut server, _incoming) = legacy().await;
    let page: Vec<_> = (0..3000).map(|n| json!({"name": n})).collect();
    let (tools, ()) = tokio::join!(upstream.list("tools/list", "tools"), async {
        for cursor in 0..4 {
            let request = server.recv().await;
            server.respond(&request, json!({"tools": page, "nextCursor": cursor.to_string()})).await;
        }
    });
    assert!(matches!(tools, Err(UpstreamError::Refused(reason)) if reason.contains("10000")));
}

#[tokio::test]
async fn flood_of_notifications_does_not_delay_responses() {
    let (upstream, mut server, mut incoming) = legacy().await;
    // The queue has a capacity of 8 and is not read.
    for n in 0..10_000 {
        server.send(json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {"n": n}})).await;
    }
    assert_responds(&upstream, &mut server).await;
    assert_eq!(upstream.counters().dropped.load(Ordering::Relaxed), 10_000 - 8);
    let Some(Incoming::Notification { params: Some(params), .. }) = incoming.recv().await else { panic!() };
    assert_eq!(params["n"], 0);
}

#[tokio::test]
async fn flood_of_requests_is_answered_with_errors() {
    let (upstream, mut server, incoming) = legacy().await;
    for id in 0..200 {
        server.send(json!({"jsonrpc": "2.0", "id": id, "method": "sampling/createMessage"})).await;
    }
    // 8 requests wait in the queue, all others have failed.
    for _ in 0..192 {
        assert_eq!(server.recv().await["error"]["code"], -32603);
    }
    drop(incoming);
    for _ in 0..8 {
        assert_eq!(server.recv().await["error"]["code"], -32603);
    }
    assert_responds(&upstream, &mut server).await;
}

#[tokio::test(start_paused = true)]
async fn connection_ends_if_server_does_not_read() {
    let (upstream, server, _incoming) = legacy().await;
    let text = "x".repeat(1_000_000);
    let calls = (0..8).map(|_| {
        let call = OutgoingCall { idle_timeout: None, ..call("m", json!({ "text": text })) };
        upstream.call(call)
    });
    for result in futures_util::future::join_all(calls).await {
        assert!(matches!(result, Err(UpstreamError::Closed { .. })), "{result:?}");
    }
    let EndReason::Lost(reason) = upstream.ended().await else { panic!() };
    assert_eq!(reason, "the server does not read its input");
    drop(server);
}

#[tokio::test]
async fn too_large_call_is_not_sent() {
    let (upstream, mut server, _incoming) = legacy().await;
    let result = upstream.call(call("m", json!({"text": "x".repeat(17 * 1024 * 1024)}))).await;
    assert_eq!(result, Err(UpstreamError::TooLarge));
    assert_responds(&upstream, &mut server).await;
}

#[tokio::test(start_paused = true)]
async fn connecting_to_silent_server_times_out() {
    let (upstream, ..) =
        super::scripted_server::connect_with(crate::upstream::Eras::Auto, async |server: &mut ScriptedServer| {
            server.recv().await;
            server.recv().await;
        })
        .await;
    assert_eq!(upstream.err(), Some(UpstreamError::TimedOut));
}
