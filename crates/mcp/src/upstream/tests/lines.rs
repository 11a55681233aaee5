//! Calls over lines: answers, progress, cancellation, time limits, what the server asks.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::peer::{call, legacy};
use crate::upstream::{EndReason, Incoming, Outgoing, RpcError, UpstreamError};

#[tokio::test]
async fn answers_in_any_order_reach_their_calls_untouched() {
    let (upstream, mut peer, _incoming) = legacy().await;
    let odd = json!({"content": [{"type": "hologram", "z": 1, "a": null}], "unknown": {"b": [1.5, "x"]}});
    let (first, second, ()) = tokio::join!(
        upstream.call(call("tools/call", json!({"name": "one"}))),
        upstream.call(call("tools/call", json!({"name": "two"}))),
        async {
            let (one, two) = (peer.hear().await, peer.hear().await);
            assert_eq!((&one["params"]["name"], &two["params"]["name"]), (&json!("one"), &json!("two")));
            peer.answer(&two, odd.clone()).await;
            peer.fail(&one, -32000, json!({"k": 1})).await;
        }
    );
    // The order of members is kept too.
    assert_eq!(second.unwrap().to_string(), odd.to_string());
    let expected = RpcError::new(-32000, "no").with_data(json!({"k": 1}));
    assert_eq!(first, Err(UpstreamError::Rpc(expected)));
}

#[tokio::test]
async fn a_batch_answers_several_calls() {
    let (upstream, mut peer, _incoming) = legacy().await;
    let (first, second, ()) =
        tokio::join!(upstream.call(call("a", json!({}))), upstream.call(call("b", json!({}))), async {
            let (a, b) = (peer.hear().await, peer.hear().await);
            peer.say(json!([{"id": b["id"], "result": 2}, {"id": a["id"], "result": 1}])).await;
        });
    assert_eq!((first.unwrap(), second.unwrap()), (json!(1), json!(2)));
}

#[tokio::test(start_paused = true)]
async fn progress_has_the_callers_token_and_ends_the_silence() {
    let (upstream, mut peer, _incoming) = legacy().await;
    let (related, mut heard) = mpsc::channel(8);
    let params = json!({"name": "slow", "_meta": {"progressToken": "mine", "x": 1}});
    let outgoing = Outgoing { related: Some(related), ..call("tools/call", params) };
    let (result, ()) = tokio::join!(upstream.call(outgoing), async {
        let request = peer.hear().await;
        let token = &request["params"]["_meta"]["progressToken"];
        assert_ne!(token, "mine");
        assert_eq!(request["params"]["_meta"]["x"], 1);
        // Each within the limit of 10 s, together far beyond it.
        for progress in 1..=4 {
            tokio::time::sleep(Duration::from_secs(8)).await;
            peer.say(json!({"jsonrpc": "2.0", "method": "notifications/progress",
                "params": {"progressToken": token, "progress": progress, "odd": true}}))
                .await;
        }
        peer.say(json!({"jsonrpc": "2.0", "method": "notifications/progress",
            "params": {"progressToken": "mine", "progress": 9}}))
            .await;
        tokio::time::sleep(Duration::from_secs(8)).await;
        peer.answer(&request, json!({})).await;
    });
    assert!(result.is_ok());
    for progress in 1..=4 {
        let Some(Incoming::Notification { params: Some(params), .. }) = heard.recv().await else { panic!() };
        assert_eq!(params, json!({"progressToken": "mine", "progress": progress, "odd": true}));
    }
    assert!(heard.recv().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_call_without_an_answer_times_out_and_the_server_is_told() {
    let (upstream, mut peer, _incoming) = legacy().await;
    let (result, request) = tokio::join!(upstream.call(call("tools/call", json!({}))), peer.hear());
    assert_eq!(result, Err(UpstreamError::TimedOut));
    let cancelled = peer.hear().await;
    assert_eq!(cancelled["method"], "notifications/cancelled");
    assert_eq!(cancelled["params"]["requestId"], request["id"]);
}

#[tokio::test]
async fn a_call_that_is_cancelled_or_dropped_is_withdrawn() {
    let (upstream, mut peer, _incoming) = legacy().await;
    let cancel = CancellationToken::new();
    let outgoing = Outgoing { cancel: cancel.clone(), ..call("tools/call", json!({})) };
    let (result, request) = tokio::join!(upstream.call(outgoing), async {
        let request = peer.hear().await;
        cancel.cancel();
        request
    });
    assert_eq!(result, Err(UpstreamError::Cancelled));
    assert_eq!(peer.hear().await["params"]["requestId"], request["id"]);

    let calling = tokio::spawn({
        let upstream = upstream.clone();
        async move { upstream.call(call("tools/call", json!({}))).await }
    });
    let request = peer.hear().await;
    calling.abort();
    assert_eq!(peer.hear().await["params"]["requestId"], request["id"]);
    // An answer that comes late is nobody's.
    peer.answer(&request, json!({})).await;
    let (result, ()) = tokio::join!(upstream.call(call("next", json!({}))), async {
        let next = peer.hear().await;
        peer.answer(&next, json!(3)).await;
    });
    assert_eq!(result.unwrap(), json!(3));
}

#[tokio::test]
async fn what_the_server_asks_goes_to_the_only_call_and_is_answered() {
    let (upstream, mut peer, mut incoming) = legacy().await;
    let (related, mut heard) = mpsc::channel(8);
    let outgoing = Outgoing { related: Some(related), ..call("tools/call", json!({})) };
    let (result, (), ()) = tokio::join!(
        upstream.call(outgoing),
        async {
            let request = peer.hear().await;
            peer.say(
                json!({"jsonrpc": "2.0", "id": "q-1", "method": "elicitation/create", "params": {"message": "?"}}),
            )
            .await;
            assert_eq!(peer.hear().await, json!({"jsonrpc": "2.0", "id": "q-1", "result": {"action": "accept"}}));
            peer.say(json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": "log"}})).await;
            peer.say(json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})).await;
            peer.answer(&request, json!({})).await;
        },
        async {
            let Some(Incoming::Request { method, params, answer }) = heard.recv().await else { panic!() };
            assert_eq!((method.as_str(), params), ("elicitation/create", Some(json!({"message": "?"}))));
            answer.send(Ok(json!({"action": "accept"}))).unwrap();
        }
    );
    assert!(result.is_ok());
    let Some(Incoming::Notification { method, .. }) = heard.recv().await else { panic!() };
    assert_eq!(method, "notifications/message");
    let Some(Incoming::Notification { method, .. }) = incoming.recv().await else { panic!() };
    assert_eq!(method, "notifications/tools/list_changed");

    // With no call under way it is nobody's in particular.
    peer.say(json!({"jsonrpc": "2.0", "id": 7, "method": "roots/list"})).await;
    let Some(Incoming::Request { answer, .. }) = incoming.recv().await else { panic!() };
    answer.send(Err(RpcError::new(-32601, "none"))).unwrap();
    assert_eq!(peer.hear().await["error"]["code"], -32601);
    // Withdrawn by the server, it is closed here and not answered; a ping is answered at once.
    peer.say(json!({"jsonrpc": "2.0", "id": 8, "method": "sampling/createMessage"})).await;
    let Some(Incoming::Request { mut answer, .. }) = incoming.recv().await else { panic!() };
    peer.say(json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 8}})).await;
    answer.closed().await;
    peer.say(json!({"jsonrpc": "2.0", "id": 9, "method": "ping"})).await;
    assert_eq!(peer.hear().await, json!({"jsonrpc": "2.0", "id": 9, "result": {}}));
}

#[tokio::test(start_paused = true)]
async fn a_call_does_not_time_out_while_the_server_waits_for_the_client() {
    let (upstream, mut peer, _incoming) = legacy().await;
    let (related, mut heard) = mpsc::channel(8);
    let outgoing = Outgoing { related: Some(related), ..call("tools/call", json!({})) };
    let (result, (), ()) = tokio::join!(
        upstream.call(outgoing),
        async {
            let request = peer.hear().await;
            peer.say(json!({"jsonrpc": "2.0", "id": 1, "method": "elicitation/create"})).await;
            peer.hear().await;
            tokio::time::sleep(Duration::from_secs(9)).await;
            peer.answer(&request, json!({})).await;
        },
        async {
            let Some(Incoming::Request { answer, .. }) = heard.recv().await else { panic!() };
            tokio::time::sleep(Duration::from_secs(300)).await;
            answer.send(Ok(json!({}))).unwrap();
        }
    );
    assert!(result.is_ok());
}

#[tokio::test]
async fn lists_are_read_over_all_pages() {
    let (upstream, mut peer, _incoming) = legacy().await;
    let (tools, ()) = tokio::join!(upstream.list("tools/list", "tools"), async {
        let first = peer.hear().await;
        assert!(first.get("params").is_none());
        peer.answer(&first, json!({"tools": [{"name": "a"}], "nextCursor": "2"})).await;
        let second = peer.hear().await;
        assert_eq!(second["params"], json!({"cursor": "2"}));
        peer.answer(&second, json!({"tools": [{"name": "b", "odd": 1}]})).await;
    });
    assert_eq!(tools.unwrap(), [json!({"name": "a"}), json!({"name": "b", "odd": 1})]);
}

#[tokio::test]
async fn a_notification_is_sent_and_the_last_owner_closes() {
    let (upstream, mut peer, _incoming) = legacy().await;
    upstream.notify("notifications/roots/list_changed", None).await.unwrap();
    assert_eq!(peer.hear().await, json!({"jsonrpc": "2.0", "method": "notifications/roots/list_changed"}));
    let other = upstream.clone();
    drop(upstream);
    let (result, ()) = tokio::join!(other.call(call("m", json!({}))), async {
        let request = peer.hear().await;
        peer.answer(&request, Value::Null).await;
    });
    assert_eq!(result.unwrap(), Value::Null);
    drop(other);
    assert!(peer.is_left().await);
}

#[tokio::test]
async fn closing_ends_what_is_under_way() {
    let (upstream, mut peer, _incoming) = legacy().await;
    let (result, ()) = tokio::join!(upstream.call(call("m", json!({}))), async {
        peer.hear().await;
        upstream.close().await;
    });
    assert!(matches!(result, Err(UpstreamError::Closed { may_have_run: true, .. })));
    assert_eq!(upstream.ended().await, EndReason::Closed);
    let result = upstream.call(call("m", json!({}))).await;
    assert!(matches!(result, Err(UpstreamError::Closed { may_have_run: false, .. })));
}
