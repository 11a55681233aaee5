//! Raw results: large ones are received over every transport, and the slots limit their number.

use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::http::StatusCode;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::http_servers::{Served, Streamable, call, connect_with_slots};
use super::scripted_server::{self, ScriptedServer};
use super::{sse, websocket};
use crate::upstream::large_message_slots::{MAX_RAW_BYTES, Slots};
use crate::upstream::{EndReason, Eras, Incoming, OutgoingCall, RawResult, Target, Upstream, UpstreamError};

const MEGABYTE: usize = 1_000_000;

async fn stdio(slots: &Slots) -> (Upstream, ScriptedServer, mpsc::Receiver<Incoming>) {
    let (upstream, server, incoming) =
        scripted_server::connect_with_slots(slots, Eras::Auto, ScriptedServer::negotiate_legacy).await;
    (upstream.unwrap(), server, incoming)
}

async fn http(slots: &Slots) -> (Upstream, Served, mpsc::Receiver<Incoming>) {
    let (server, _send) = Streamable::new(true, StatusCode::NOT_FOUND);
    let (served, target) = server.serve().await;
    let (upstream, incoming) = connect_with_slots(slots, Target::Http(target)).await;
    (upstream.unwrap(), served, incoming)
}

fn tool() -> OutgoingCall {
    call("tools/call", json!({"name": "t"}))
}

fn sized(name: &str, megabytes: usize) -> OutgoingCall {
    call("tools/call", json!({"name": name, "arguments": {"megabytes": megabytes}}))
}

/// Sends this many megabytes without a line feed.
async fn send_megabytes(server: &mut ScriptedServer, count: usize) {
    let megabyte = "x".repeat(MEGABYTE);
    for _ in 0..count {
        server.send_raw(&megabyte).await;
    }
}

async fn respond_with_megabytes(server: &mut ScriptedServer, id: &Value, megabytes: usize) {
    server.send_raw(&format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":\"")).await;
    send_megabytes(server, megabytes).await;
    server.send_raw("\"}\n").await;
}

async fn assert_responds(upstream: &Upstream, server: &mut ScriptedServer) {
    let (result, ()) = tokio::join!(upstream.call(call("still", json!({}))), async {
        let mut request = server.recv().await;
        while request["method"] != "still" {
            request = server.recv().await;
        }
        server.respond(&request, json!("there")).await;
    });
    assert_eq!(result.unwrap(), json!("there"));
}

/// Asserts that the result is one string of this many megabytes.
fn assert_is_string(result: &RawResult, megabytes: usize) {
    let json = result.as_ref();
    assert_eq!(json.len(), megabytes * MEGABYTE + 2);
    let expected = format!("\"{}\"", "x".repeat(megabytes * MEGABYTE));
    assert!(json == expected.as_bytes());
}

#[tokio::test]
async fn line_of_50_mb_is_received_with_id_at_either_end() {
    let slots = Slots::new(2);
    let (upstream, mut server, _incoming) = stdio(&slots).await;
    let (first, ()) = tokio::join!(upstream.call_raw(tool()), async {
        let request = server.recv().await;
        respond_with_megabytes(&mut server, &request["id"], 50).await;
    });
    let (second, ()) = tokio::join!(upstream.call_raw(tool()), async {
        let request = server.recv().await;
        server.send_raw("{\"result\":\"").await;
        send_megabytes(&mut server, 50).await;
        server.send_raw(&format!("\",\"jsonrpc\":\"2.0\",\"id\":\"{}\"}}\n", request["id"])).await;
    });
    let (first, second) = (first.unwrap(), second.unwrap());
    assert_is_string(&first, 50);
    assert_is_string(&second, 50);
    assert_eq!(slots.available(), 0);
    drop(first);
    assert_eq!(slots.available(), 1);
    drop(second);
    assert_eq!(slots.available(), 2);
}

#[tokio::test]
async fn body_and_stream_of_50_mb_are_received() {
    let slots = Slots::new(1);
    let (upstream, _served, _incoming) = http(&slots).await;
    for name in ["sized", "sized stream"] {
        let result = upstream.call_raw(sized(name, 50)).await.unwrap();
        assert_is_string(&result, 50);
        assert_eq!(slots.available(), 0, "{name}");
        drop(result);
        assert_eq!(upstream.call_raw(sized(name, 70)).await.unwrap_err(), UpstreamError::TooLarge, "{name}");
        assert_eq!(slots.available(), 1, "{name}");
        // Ordinary calls keep their limit.
        assert_eq!(upstream.call(sized(name, 17)).await, Err(UpstreamError::TooLarge), "{name}");
        assert_eq!(upstream.call(sized(name, 15)).await.unwrap().as_str().unwrap().len(), 15 * MEGABYTE, "{name}");
    }
    assert_eq!(
        upstream.call_raw(sized("noise", 0)).await.unwrap_err().to_string(),
        "the response of the server does not belong to the call"
    );
}

#[tokio::test]
async fn message_of_50_mb_is_received_over_websocket() {
    let slots = Slots::new(1);
    let (_served, target) = websocket::serve_websocket(false).await;
    let (upstream, _incoming) = connect_with_slots(&slots, target).await;
    let upstream = upstream.unwrap();
    let large = |megabytes: usize| upstream.call_raw(call("large", json!({"megabytes": megabytes})));
    let result = large(50).await.unwrap();
    assert_is_string(&result, 50);
    assert_eq!(slots.available(), 0);
    // Without a slot a small enough message is still received, but not as a raw result.
    assert_eq!(large(2).await.unwrap_err(), UpstreamError::Busy);
    drop(result);
    assert_is_string(&large(2).await.unwrap(), 2);
    assert_eq!(large(70).await.unwrap_err(), UpstreamError::TooLarge);
    let EndReason::Lost(reason) = upstream.ended().await else { panic!() };
    assert!(reason.contains("64 MiB"), "{reason}");
    upstream.close().await;
    assert_eq!(slots.available(), 1);
}

#[tokio::test]
async fn large_event_is_received_over_sse() {
    let slots = Slots::new(1);
    let (_served, target, _server) = sse::serve_sse("/messages").await;
    let (upstream, _incoming) = connect_with_slots(&slots, Target::Sse(target)).await;
    let upstream = upstream.unwrap();
    let result = upstream.call_raw(call("large", json!({}))).await.unwrap();
    assert_eq!((result.as_ref().len(), slots.available()), ((17 << 20) + 2, 0));
    drop(result);
    assert_eq!(upstream.call(call("large", json!({}))).await, Err(UpstreamError::TooLarge));
    assert_eq!(upstream.call_raw(call("echo", json!({"odd": 1}))).await.unwrap().as_ref(), br#"{"odd":1}"#);
    assert_eq!(slots.available(), 1);
}

#[tokio::test]
async fn line_over_64_mib_fails_only_its_call() {
    let slots = Slots::new(1);
    let (upstream, mut server, _incoming) = stdio(&slots).await;
    let (large, other, ()) = tokio::join!(upstream.call_raw(tool()), upstream.call_raw(tool()), async {
        let (large, other) = (server.recv().await, server.recv().await);
        respond_with_megabytes(&mut server, &large["id"], MAX_RAW_BYTES / MEGABYTE + 1).await;
        server.respond(&other, json!(1)).await;
    });
    assert_eq!(large.unwrap_err(), UpstreamError::TooLarge);
    assert_eq!(other.unwrap().as_ref(), b"1");
    assert_eq!((slots.available(), upstream.counters().oversized.load(Ordering::Relaxed)), (1, 1));
    assert_responds(&upstream, &mut server).await;
}

#[tokio::test]
async fn ordinary_calls_keep_their_limit_beside_raw_calls() {
    let slots = Slots::new(1);
    let (upstream, mut server, _incoming) = stdio(&slots).await;
    let (large, fits, raw, ()) =
        tokio::join!(upstream.call(tool()), upstream.call(tool()), upstream.call_raw(tool()), async {
            let (large, fits, raw) = (server.recv().await, server.recv().await, server.recv().await);
            respond_with_megabytes(&mut server, &large["id"], 20).await;
            respond_with_megabytes(&mut server, &fits["id"], 3).await;
            server.respond(&raw, json!({"a": 1})).await;
        });
    assert_eq!(large, Err(UpstreamError::TooLarge));
    assert_eq!(fits.unwrap().as_str().unwrap().len(), 3 * MEGABYTE);
    assert_eq!(raw.unwrap().as_ref(), br#"{"a":1}"#);
    assert_eq!(slots.available(), 1);
}

#[tokio::test(start_paused = true)]
async fn without_slot_raw_result_is_dropped_and_ordinary_result_is_not() {
    let slots = Slots::new(1);
    let (upstream, mut server, _incoming) = stdio(&slots).await;
    let (stored, ()) = tokio::join!(upstream.call_raw(tool()), async {
        let request = server.recv().await;
        respond_with_megabytes(&mut server, &request["id"], 2).await;
    });
    let stored = stored.unwrap();
    let (small, late, huge, ordinary, ()) = tokio::join!(
        upstream.call_raw(tool()),
        upstream.call_raw(tool()),
        upstream.call_raw(tool()),
        upstream.call(tool()),
        async {
            let requests = [server.recv().await, server.recv().await, server.recv().await, server.recv().await];
            server.respond(&requests[0], json!("small")).await;
            respond_with_megabytes(&mut server, &requests[3]["id"], 2).await;
            respond_with_megabytes(&mut server, &requests[1]["id"], 2).await;
            respond_with_megabytes(&mut server, &requests[2]["id"], 20).await;
        }
    );
    assert_eq!(small.unwrap().as_ref(), b"\"small\"");
    assert_eq!((late.unwrap_err(), huge.unwrap_err()), (UpstreamError::Busy, UpstreamError::Busy));
    assert_eq!(ordinary.unwrap().as_str().unwrap().len(), 2 * MEGABYTE);
    assert_is_string(&stored, 2);

    // A message that waits gets a slot that becomes free.
    let (next, (), ()) = tokio::join!(
        upstream.call_raw(tool()),
        async {
            let request = server.recv().await;
            respond_with_megabytes(&mut server, &request["id"], 2).await;
        },
        async {
            tokio::time::sleep(Duration::from_secs(2)).await;
            drop(stored);
        }
    );
    assert_is_string(&next.unwrap(), 2);
    assert_eq!(slots.available(), 1);
}

#[tokio::test]
async fn number_of_large_results_is_limited_by_slots() {
    let slots = Slots::new(2);
    let (upstream, _served, _incoming) = http(&slots).await;
    let calls = (0..8).map(|n| upstream.call_raw(sized(if n % 2 == 0 { "sized" } else { "sized stream" }, 3)));
    let results = futures_util::future::join_all(calls).await;
    let stored = results.iter().filter(|result| result.is_ok()).count();
    let busy = results.iter().filter(|result| matches!(result, Err(UpstreamError::Busy))).count();
    assert_eq!((stored, busy, slots.available()), (2, 6, 0));
    drop(results);
    // If each result is dropped at once, all calls succeed.
    let calls = (0..8).map(|_| async { assert_is_string(&upstream.call_raw(sized("sized", 2)).await.unwrap(), 2) });
    futures_util::future::join_all(calls).await;
    assert_eq!(slots.available(), 2);
}

#[tokio::test(start_paused = true)]
async fn cancelled_call_releases_slot_of_incomplete_response() {
    let slots = Slots::new(1);
    let (upstream, mut server, _incoming) = stdio(&slots).await;
    for megabytes in [3, 20] {
        let cancel = CancellationToken::new();
        let outgoing = OutgoingCall { cancel: cancel.clone(), ..tool() };
        let (result, ()) = tokio::join!(upstream.call_raw(outgoing), async {
            let request = server.recv().await;
            server.send_raw(&format!("{{\"id\":{},\"result\":\"", request["id"])).await;
            send_megabytes(&mut server, megabytes).await;
            assert_eq!(slots.available(), 0);
            cancel.cancel();
        });
        assert_eq!(result.unwrap_err(), UpstreamError::Cancelled);
        // The server pauses.
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert_eq!(slots.available(), 1);
        send_megabytes(&mut server, 1).await;
        server.send_raw("\"}\n").await;
        assert_responds(&upstream, &mut server).await;
    }
}

#[tokio::test]
async fn cancelled_http_call_releases_slot_of_incomplete_response() {
    let slots = Slots::new(1);
    let (upstream, _served, _incoming) = http(&slots).await;
    let cancel = CancellationToken::new();
    let outgoing = OutgoingCall { cancel: cancel.clone(), ..sized("stalled", 0) };
    let (result, ()) = tokio::join!(upstream.call_raw(outgoing), async {
        while slots.available() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        cancel.cancel();
    });
    assert_eq!((result.unwrap_err(), slots.available()), (UpstreamError::Cancelled, 1));
}

#[tokio::test(start_paused = true)]
async fn server_that_sends_large_message_is_alive() {
    let (upstream, mut server, _incoming) = stdio(&Slots::new(1)).await;
    let (result, is_alive, ()) =
        tokio::join!(upstream.call_raw(tool()), upstream.ping(Duration::from_secs(5)), async {
            let (request, _ping) = (server.recv().await, server.recv().await);
            server.send_raw(&format!("{{\"id\":{},\"result\":\"", request["id"])).await;
            for _ in 0..10 {
                send_megabytes(&mut server, 1).await;
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            server.send_raw("\"}\n").await;
        });
    assert!(is_alive);
    assert_is_string(&result.unwrap(), 10);
    assert!(!upstream.ping(Duration::from_secs(5)).await);
}

#[tokio::test(start_paused = true)]
async fn endless_message_loses_its_slot() {
    let slots = Slots::new(1);
    let (upstream, mut server, _incoming) = stdio(&slots).await;
    let (result, ()) = tokio::join!(upstream.call_raw(tool()), async {
        let request = server.recv().await;
        server.send_raw(&format!("{{\"id\":{},\"result\":\"", request["id"])).await;
        send_megabytes(&mut server, 20).await;
        tokio::time::sleep(Duration::from_secs(100)).await;
        assert_eq!(slots.available(), 0);
        tokio::time::sleep(Duration::from_secs(30)).await;
        assert_eq!(slots.available(), 1);
        server.send_raw("\"}\n").await;
    });
    assert_eq!(result.unwrap_err(), UpstreamError::Busy);
    assert_responds(&upstream, &mut server).await;
}

#[tokio::test]
async fn closed_connection_releases_its_slots() {
    let slots = Slots::new(1);
    let (upstream, mut server, _incoming) = stdio(&slots).await;
    let (result, ()) = tokio::join!(upstream.call_raw(tool()), async {
        let request = server.recv().await;
        server.send_raw(&format!("{{\"id\":{},\"result\":\"", request["id"])).await;
        send_megabytes(&mut server, 3).await;
        assert_eq!(slots.available(), 0);
        drop(server);
    });
    assert!(matches!(result, Err(UpstreamError::Closed { may_have_run: true, .. })));
    upstream.close().await;
    assert_eq!(slots.available(), 1);
}

#[tokio::test]
async fn large_invalid_messages_are_skipped() {
    let slots = Slots::new(1);
    let (upstream, mut server, _incoming) = stdio(&slots).await;
    let (result, ()) = tokio::join!(upstream.call_raw(tool()), async {
        let request = server.recv().await;
        let id = &request["id"];
        // Invalid JSON, too deep nesting, a duplicate id.
        server.send_raw(&format!("{{\"id\":{id},\"result\":NaN,\"x\":\"{}\"}}\n", "x".repeat(2 * MEGABYTE))).await;
        server.send_raw(&format!("{{\"id\":{id},\"result\":{}}}\n", "[".repeat(2 * MEGABYTE))).await;
        server.send_raw(&format!("{{\"id\":{id},\"result\":[\"{}\"],\"id\":{id}}}\n", "x".repeat(2 * MEGABYTE))).await;
        server.respond(&request, json!("at last")).await;
    });
    assert_eq!(result.unwrap().as_ref(), b"\"at last\"");
    assert_eq!((slots.available(), upstream.counters().malformed.load(Ordering::Relaxed)), (1, 3));
}

#[tokio::test]
async fn batch_completes_raw_and_ordinary_calls() {
    let slots = Slots::new(1);
    let (upstream, mut server, _incoming) = stdio(&slots).await;
    let (first, second, third, ()) =
        tokio::join!(upstream.call_raw(tool()), upstream.call_raw(tool()), upstream.call(tool()), async {
            let ids =
                [server.recv().await, server.recv().await, server.recv().await].map(|request| request["id"].clone());
            server.send_raw(&format!("[{{\"id\":{},\"result\":\"", ids[0])).await;
            send_megabytes(&mut server, 2).await;
            let rest = format!(
                "\"}}, 7, [], {{\"id\":{},\"result\":[1.0]}},{{\"result\":\"o\",\"id\":{}}}]\n",
                ids[1], ids[2]
            );
            server.send_raw(&rest).await;
        });
    let (first, second) = (first.unwrap(), second.unwrap());
    assert_is_string(&first, 2);
    assert_eq!((second.as_ref(), third.unwrap()), (b"[1.0]".as_slice(), json!("o")));
    assert_eq!(upstream.counters().malformed.load(Ordering::Relaxed), 2);
    // Both results are parts of one message.
    drop(first);
    assert_eq!(slots.available(), 0);
    drop(second);
    assert_eq!(slots.available(), 1);
}

#[tokio::test]
async fn error_of_raw_call_is_parsed_and_limited() {
    let slots = Slots::new(1);
    let (upstream, mut server, _incoming) = stdio(&slots).await;
    let (small, large, ()) = tokio::join!(upstream.call_raw(tool()), upstream.call_raw(tool()), async {
        let (small, large) = (server.recv().await, server.recv().await);
        server.fail(&small, -32000, json!({"k": 1})).await;
        server.fail(&large, -32000, json!("x".repeat(2 * MEGABYTE))).await;
    });
    let Err(UpstreamError::Rpc(error)) = small else { panic!() };
    assert_eq!((error.code, error.data), (-32000, Some(json!({"k": 1}))));
    assert_eq!(large.unwrap_err(), UpstreamError::TooLarge);
    assert_eq!(slots.available(), 1);
}
