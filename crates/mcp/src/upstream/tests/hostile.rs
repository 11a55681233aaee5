//! Servers that do wrong, over lines. Each does it once, and the connection goes on where it can.

use std::sync::atomic::Ordering;

use serde_json::json;

use super::peer::{Peer, call, legacy};
use crate::upstream::{EndReason, Incoming, Outgoing, Upstream, UpstreamError};

async fn assert_answers(upstream: &Upstream, peer: &mut Peer) {
    let (result, ()) = tokio::join!(upstream.call(call("still", json!({}))), async {
        let request = peer.hear().await;
        assert_eq!(request["method"], "still");
        peer.answer(&request, json!("there")).await;
    });
    assert_eq!(result.unwrap(), json!("there"));
}

#[tokio::test]
async fn a_line_of_100_mb_fails_its_call_only() {
    let (upstream, mut peer, _incoming) = legacy().await;
    let (large, other, ()) =
        tokio::join!(upstream.call(call("large", json!({}))), upstream.call(call("other", json!({}))), async {
            let (large, other) = (peer.hear().await, peer.hear().await);
            peer.say_raw(&format!("{{\"jsonrpc\":\"2.0\",\"id\":{},\"result\":\"", large["id"])).await;
            let megabyte = "x".repeat(1_000_000);
            for _ in 0..100 {
                peer.say_raw(&megabyte).await;
            }
            peer.say_raw("\"}\n").await;
            peer.answer(&other, json!(1)).await;
        });
    assert_eq!(large, Err(UpstreamError::TooLarge));
    assert_eq!(other.unwrap(), json!(1));
    assert_eq!(upstream.counters().oversized.load(Ordering::Relaxed), 1);
    assert_answers(&upstream, &mut peer).await;
}

#[tokio::test]
async fn lines_that_are_no_messages_are_skipped_up_to_a_bound() {
    let (upstream, mut peer, _incoming) = legacy().await;
    for _ in 0..99 {
        peer.say_raw("npm warn something\n\n").await;
    }
    assert_answers(&upstream, &mut peer).await;
    assert_eq!(upstream.counters().malformed.load(Ordering::Relaxed), 99);
    let (result, ()) = tokio::join!(upstream.call(call("m", json!({}))), async {
        peer.hear().await;
        for _ in 0..100 {
            peer.say_raw("{]\n").await;
        }
    });
    assert!(matches!(result, Err(UpstreamError::Closed { may_have_run: true, .. })));
    let EndReason::Lost(why) = upstream.ended().await else { panic!() };
    assert!(why.contains("not JSON-RPC"), "{why}");
    assert!(peer.is_left().await);
}

#[tokio::test]
async fn answers_that_come_twice_or_to_nobody_are_counted_only() {
    let (upstream, mut peer, _incoming) = legacy().await;
    let (result, ()) = tokio::join!(upstream.call(call("m", json!({}))), async {
        let request = peer.hear().await;
        peer.say(json!({"jsonrpc": "2.0", "id": 4711, "result": "forged"})).await;
        peer.say(json!({"jsonrpc": "2.0", "id": "x", "result": "forged"})).await;
        peer.say(json!({"jsonrpc": "2.0", "id": null, "result": "forged"})).await;
        peer.answer(&request, json!("first")).await;
        peer.answer(&request, json!("second")).await;
    });
    assert_eq!(result.unwrap(), json!("first"));
    assert_answers(&upstream, &mut peer).await;
    assert_eq!(upstream.counters().unknown_answers.load(Ordering::Relaxed), 4);
}

#[tokio::test]
async fn a_server_that_dies_in_a_call_may_have_run_it() {
    let (upstream, mut peer, _incoming) = legacy().await;
    let (result, ()) = tokio::join!(upstream.call(call("m", json!({}))), async {
        peer.hear().await;
        drop(peer);
    });
    assert!(matches!(result, Err(UpstreamError::Closed { may_have_run: true, .. })));
    assert!(matches!(upstream.ended().await, EndReason::Lost(_)));
    let result = upstream.call(call("m", json!({}))).await;
    assert!(matches!(result, Err(UpstreamError::Closed { may_have_run: false, .. })));
}

#[tokio::test]
async fn a_cursor_that_comes_twice_ends_the_list() {
    let (upstream, mut peer, _incoming) = legacy().await;
    let (tools, ()) = tokio::join!(upstream.list("tools/list", "tools"), async {
        for cursor in ["a", "b", "a"] {
            let page = peer.hear().await;
            peer.answer(&page, json!({"tools": [{}], "nextCursor": cursor})).await;
        }
    });
    assert!(matches!(tools, Err(UpstreamError::Refused(why)) if why.contains("cursor")));
}

#[tokio::test]
async fn an_endless_list_is_cut() {
    let (upstream, mut peer, _incoming) = legacy().await;
    let page: Vec<_> = (0..3000).map(|n| json!({"name": n})).collect();
    let (tools, ()) = tokio::join!(upstream.list("tools/list", "tools"), async {
        for cursor in 0..4 {
            let asked = peer.hear().await;
            peer.answer(&asked, json!({"tools": page, "nextCursor": cursor.to_string()})).await;
        }
    });
    assert!(matches!(tools, Err(UpstreamError::Refused(why)) if why.contains("10000")));
}

#[tokio::test]
async fn a_flood_of_notifications_does_not_hold_up_answers() {
    let (upstream, mut peer, mut incoming) = legacy().await;
    // Nobody takes them: there is room for 8.
    for n in 0..10_000 {
        peer.say(json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {"n": n}})).await;
    }
    assert_answers(&upstream, &mut peer).await;
    assert_eq!(upstream.counters().dropped.load(Ordering::Relaxed), 10_000 - 8);
    let Some(Incoming::Notification { params: Some(params), .. }) = incoming.recv().await else { panic!() };
    assert_eq!(params["n"], 0);
}

#[tokio::test]
async fn a_flood_of_requests_is_answered_with_errors() {
    let (upstream, mut peer, incoming) = legacy().await;
    for id in 0..200 {
        peer.say(json!({"jsonrpc": "2.0", "id": id, "method": "sampling/createMessage"})).await;
    }
    // 8 wait in the queue, all others have failed.
    for _ in 0..192 {
        assert_eq!(peer.hear().await["error"]["code"], -32603);
    }
    drop(incoming);
    for _ in 0..8 {
        assert_eq!(peer.hear().await["error"]["code"], -32603);
    }
    assert_answers(&upstream, &mut peer).await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_read_is_given_up() {
    let (upstream, peer, _incoming) = legacy().await;
    let text = "x".repeat(1_000_000);
    let calls = (0..8).map(|_| {
        let call = Outgoing { deadline: None, ..call("m", json!({ "text": text })) };
        upstream.call(call)
    });
    for result in futures_util::future::join_all(calls).await {
        assert!(matches!(result, Err(UpstreamError::Closed { .. })), "{result:?}");
    }
    let EndReason::Lost(why) = upstream.ended().await else { panic!() };
    assert_eq!(why, "the server does not read its input");
    drop(peer);
}

#[tokio::test]
async fn a_call_that_is_too_large_is_not_sent() {
    let (upstream, mut peer, _incoming) = legacy().await;
    let result = upstream.call(call("m", json!({"text": "x".repeat(17 * 1024 * 1024)}))).await;
    assert_eq!(result, Err(UpstreamError::TooLarge));
    assert_answers(&upstream, &mut peer).await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_says_nothing_at_all_is_not_waited_for_for_ever() {
    let (upstream, ..) = super::peer::connect_with(crate::upstream::Eras::Auto, async |peer: &mut Peer| {
        peer.hear().await;
        peer.hear().await;
    })
    .await;
    assert_eq!(upstream.err(), Some(UpstreamError::TimedOut));
}
