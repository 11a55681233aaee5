//! Calls over stdio: responses, progress, cancellation, timeouts, requests of the server.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::scripted_server::{call, legacy};
use crate::upstream::{EndReason, Incoming, OutgoingCall, RpcError, UpstreamError};

#[tokio::test]
async fn responses_in_any_order_reach_their_calls_unchanged() {
    let (upstream, mut server, _incoming) = legacy().await;
    let odd = json!({"content": [{"type": "hologram", "z": 1, "a": null}], "unknown": {"b": [1.5, "x"]}});
    let (first, second, ()) = tokio::join!(
        upstream.call(call("tools/call", json!({"name": "one"}))),
        upstream.call(call("tools/call", json!({"name": "two"}))),
        async {
            let (one, two) = (server.recv().await, server.recv().await);
            assert_eq!((&one["params"]["name"], &two["params"]["name"]), (&json!("one"), &json!("two")));
            server.respond(&two, odd.clone()).await;
            server.fail(&one, -32000, json!({"k": 1})).await;
        }
    );
    // The order of members is preserved too.
    assert_eq!(second.unwrap().to_string(), odd.to_string());
    let expected = RpcError::new(-32000, "no").with_data(json!({"k": 1}));
    assert_eq!(first, Err(UpstreamError::Rpc(expected)));
}

#[tokio::test]
async fn batch_completes_several_calls() {
    let (upstream, mut server, _incoming) = legacy().await;
    let (first, second, ()) =
        tokio::join!(upstream.call(call("a", json!({}))), upstream.call(call("b", json!({}))), async {
            let (a, b) = (server.recv().await, server.recv().await);
            server.send(json!([{"id": b["id"], "result": 2}, {"id": a["id"], "result": 1}])).await;
        });
    assert_eq!((first.unwrap(), second.unwrap()), (json!(1), json!(2)));
}

#[tokio::test(start_paused = true)]
async fn progress_has_token_of_caller_and_restarts_idle_timeout() {
    let (upstream, mut server, _incoming) = legacy().await;
    let (related, mut messages) = mpsc::channel(8);
    let params = json!({"name": "slow", "_meta": {"progressToken": "mine", "x": 1}});
    let outgoing = OutgoingCall { related: Some(related), ..call("tools/call", params) };
    let (result, ()) = tokio::join!(upstream.call(outgoing), async {
        let request = server.recv().await;
        let token = &request["params"]["_meta"]["progressToken"];
        assert_ne!(token, "mine");
        assert_eq!(request["params"]["_meta"]["x"], 1);
        // Each is within the idle timeout of 10 s, all together far beyond it.
        for progress in 1..=4 {
            tokio::time::sleep(Duration::from_secs(8)).await;
            server
                .send(json!({"jsonrpc": "2.0", "method": "notifications/progress",
                "params": {"progressToken": token, "progress": progress, "odd": true}}))
                .await;
        }
        server
            .send(json!({"jsonrpc": "2.0", "method": "notifications/progress",
            "params": {"progressToken": "mine", "progress": 9}}))
            .await;
        tokio::time::sleep(Duration::from_secs(8)).await;
        server.respond(&request, json!({})).await;
    });
    assert!(result.is_ok());
    for progress in 1..=4 {
        let Some(Incoming::Notification { params: Some(params), .. }) = messages.recv().await else { panic!() };
        assert_eq!(params, json!({"progressToken": "mine", "progress": progress, "odd": true}));
    }
    assert!(messages.recv().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn call_without_response_times_out_and_is_cancelled() {
    let (upstream, mut server, _incoming) = legacy().await;
    let (result, request) = tokio::join!(upstream.call(call("tools/call", json!({}))), server.recv());
    assert_eq!(result, Err(UpstreamError::TimedOut));
    let cancelled = server.recv().await;
    assert_eq!(cancelled["method"], "notifications/cancelled");
    assert_eq!(cancelled["params"]["requestId"], request["id"]);
}

#[tokio::test]
async fn cancelled_and_dropped_calls_are_cancelled_at_server() {
    let (upstream, mut server, _incoming) = legacy().await;
    let cancel = CancellationToken::new();
    let outgoing = OutgoingCall { cancel: cancel.clone(), ..call("tools/call", json!({})) };
    let (result, request) = tokio::join!(upstream.call(outgoing), async {
        let request = server.recv().await;
        cancel.cancel();
        request
    });
    assert_eq!(result, Err(UpstreamError::Cancelled));
    assert_eq!(server.recv().await["params"]["requestId"], request["id"]);

    let calling = tokio::spawn({
        let upstream = upstream.clone();
        async move { upstream.call(call("tools/call", json!({}))).await }
    });
    let request = server.recv().await;
    calling.abort();
    assert_eq!(server.recv().await["params"]["requestId"], request["id"]);
    // A late response is dropped.
    server.respond(&request, json!({})).await;
    let (result, ()) = tokio::join!(upstream.call(call("next", json!({}))), async {
        let next = server.recv().await;
        server.respond(&next, json!(3)).await;
    });
    assert_eq!(result.unwrap(), json!(3));
}

#[tokio::test]
async fn requests_of_server_go_to_only_call_and_are_answered() {
    let (upstream, mut server, mut incoming) = legacy().await;
    let (related, mut messages) = mpsc::channel(8);
    let outgoing = OutgoingCall { related: Some(related), ..call("tools/call", json!({})) };
    let (result, (), ()) = tokio::join!(
        upstream.call(outgoing),
        async {
            let request = server.recv().await;
            server
                .send(
                    json!({"jsonrpc": "2.0", "id": "q-1", "method": "elicitation/create", "params": {"message": "?"}}),
                )
                .await;
            assert_eq!(server.recv().await, json!({"jsonrpc": "2.0", "id": "q-1", "result": {"action": "accept"}}));
            server.send(json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": "log"}})).await;
            server.send(json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})).await;
            server.respond(&request, json!({})).await;
        },
        async {
            let Some(Incoming::Request { method, params, reply }) = messages.recv().await else { panic!() };
            assert_eq!((method.as_str(), params), ("elicitation/create", Some(json!({"message": "?"}))));
            reply.send(Ok(json!({"action": "accept"}))).unwrap();
        }
    );
    assert!(result.is_ok());
    let Some(Incoming::Notification { method, .. }) = messages.recv().await else { panic!() };
    assert_eq!(method, "notifications/message");
    let Some(Incoming::Notification { method, .. }) = incoming.recv().await else { panic!() };
    assert_eq!(method, "notifications/tools/list_changed");

    // Without a pending call the request goes to the unrelated queue.
    server.send(json!({"jsonrpc": "2.0", "id": 7, "method": "roots/list"})).await;
    let Some(Incoming::Request { reply, .. }) = incoming.recv().await else { panic!() };
    reply.send(Err(RpcError::new(-32601, "none"))).unwrap();
    assert_eq!(server.recv().await["error"]["code"], -32601);
    // A request that the server cancels gets no response; a ping is answered at once.
    server.send(json!({"jsonrpc": "2.0", "id": 8, "method": "sampling/createMessage"})).await;
    let Some(Incoming::Request { mut reply, .. }) = incoming.recv().await else { panic!() };
    server.send(json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 8}})).await;
    reply.closed().await;
    server.send(json!({"jsonrpc": "2.0", "id": 9, "method": "ping"})).await;
    assert_eq!(server.recv().await, json!({"jsonrpc": "2.0", "id": 9, "result": {}}));
}

#[tokio::test(start_paused = true)]
async fn call_does_not_time_out_while_server_waits_for_client() {
    let (upstream, mut server, _incoming) = legacy().await;
    let (related, mut messages) = mpsc::channel(8);
    let outgoing = OutgoingCall { related: Some(related), ..call("tools/call", json!({})) };
    let (result, (), ()) = tokio::join!(
        upstream.call(outgoing),
        async {
            let request = server.recv().await;
            server.send(json!({"jsonrpc": "2.0", "id": 1, "method": "elicitation/create"})).await;
            server.recv().await;
            tokio::time::sleep(Duration::from_secs(9)).await;
            server.respond(&request, json!({})).await;
        },
        async {
            let Some(Incoming::Request { reply, .. }) = messages.recv().await else { panic!() };
            tokio::time::sleep(Duration::from_secs(300)).await;
            reply.send(Ok(json!({}))).unwrap();
        }
    );
    assert!(result.is_ok());
}

#[tokio::test]
async fn all_pages_of_list_are_read() {
    let (upstream, mut server, _incoming) = legacy().await;
    let (tools, ()) = tokio::join!(upstream.list("tools/list", "tools"), async {
        let first = server.recv().await;
        assert!(first.get("params").is_none());
        server.respond(&first, json!({"tools": [{"name": "a"}], "nextCursor": "2"})).await;
        let second = server.recv().await;
        assert_eq!(second["params"], json!({"cursor": "2"}));
        server.respond(&second, json!({"tools": [{"name": "b", "odd": 1}]})).await;
    });
    assert_eq!(tools.unwrap(), [json!({"name": "a"}), json!({"name": "b", "odd": 1})]);
}

#[tokio::test]
async fn notification_is_sent_and_last_clone_closes_connection() {
    let (upstream, mut server, _incoming) = legacy().await;
    upstream.notify("notifications/roots/list_changed", None).await.unwrap();
    assert_eq!(server.recv().await, json!({"jsonrpc": "2.0", "method": "notifications/roots/list_changed"}));
    let other = upstream.clone();
    drop(upstream);
    let (result, ()) = tokio::join!(other.call(call("m", json!({}))), async {
        let request = server.recv().await;
        server.respond(&request, Value::Null).await;
    });
    assert_eq!(result.unwrap(), Value::Null);
    drop(other);
    assert!(server.is_closed().await);
}

#[tokio::test]
async fn closing_ends_pending_calls() {
    let (upstream, mut server, _incoming) = legacy().await;
    let (result, ()) = tokio::join!(upstream.call(call("m", json!({}))), async {
        server.recv().await;
        upstream.close().await;
    });
    assert!(matches!(result, Err(UpstreamError::Closed { may_have_run: true, .. })));
    assert_eq!(upstream.ended().await, EndReason::Closed);
    let result = upstream.call(call("m", json!({}))).await;
    assert!(matches!(result, Err(UpstreamError::Closed { may_have_run: false, .. })));
}
