//! Raw answers: large ones arrive whole, over every transport, and no more of them are held than there are slots.

use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::http::StatusCode;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::loopback::{Served, Streamable, call, connect_sharing};
use super::peer::{self, Peer};
use super::{sse, websocket};
use crate::upstream::large_message_slots::{MAX_RAW_BYTES, Slots};
use crate::upstream::{EndReason, Eras, Incoming, Outgoing, RawAnswer, Upstream, UpstreamError, Wire};

const MEGABYTE: usize = 1_000_000;

async fn lines(slots: &Slots) -> (Upstream, Peer, mpsc::Receiver<Incoming>) {
    let (upstream, peer, incoming) = peer::connect_sharing(slots, Eras::Auto, Peer::be_legacy).await;
    (upstream.unwrap(), peer, incoming)
}

async fn http(slots: &Slots) -> (Upstream, Served, mpsc::Receiver<Incoming>) {
    let (server, _say) = Streamable::new(true, StatusCode::NOT_FOUND);
    let (served, settings) = server.serve().await;
    let (upstream, incoming) = connect_sharing(slots, Wire::Http(settings)).await;
    (upstream.unwrap(), served, incoming)
}

fn tool() -> Outgoing {
    call("tools/call", json!({"name": "t"}))
}

fn sized(name: &str, megabytes: usize) -> Outgoing {
    call("tools/call", json!({"name": name, "arguments": {"megabytes": megabytes}}))
}

/// Says so much, in pieces, and no line end.
async fn say_megabytes(peer: &mut Peer, count: usize) {
    let megabyte = "x".repeat(MEGABYTE);
    for _ in 0..count {
        peer.say_raw(&megabyte).await;
    }
}

async fn answer_large(peer: &mut Peer, id: &Value, megabytes: usize) {
    peer.say_raw(&format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":\"")).await;
    say_megabytes(peer, megabytes).await;
    peer.say_raw("\"}\n").await;
}

async fn assert_answers(upstream: &Upstream, peer: &mut Peer) {
    let (result, ()) = tokio::join!(upstream.call(call("still", json!({}))), async {
        let mut request = peer.hear().await;
        while request["method"] != "still" {
            request = peer.hear().await;
        }
        peer.answer(&request, json!("there")).await;
    });
    assert_eq!(result.unwrap(), json!("there"));
}

/// It is one text of so many megabytes.
fn assert_whole(answer: &RawAnswer, megabytes: usize) {
    let json = answer.as_ref();
    assert_eq!(json.len(), megabytes * MEGABYTE + 2);
    let expected = format!("\"{}\"", "x".repeat(megabytes * MEGABYTE));
    assert!(json == expected.as_bytes());
}

#[tokio::test]
async fn a_line_of_50_mb_arrives_whole_wherever_its_id_stands() {
    let slots = Slots::new(2);
    let (upstream, mut peer, _incoming) = lines(&slots).await;
    let (first, ()) = tokio::join!(upstream.call_raw(tool()), async {
        let request = peer.hear().await;
        answer_large(&mut peer, &request["id"], 50).await;
    });
    let (second, ()) = tokio::join!(upstream.call_raw(tool()), async {
        let request = peer.hear().await;
        peer.say_raw("{\"result\":\"").await;
        say_megabytes(&mut peer, 50).await;
        peer.say_raw(&format!("\",\"jsonrpc\":\"2.0\",\"id\":\"{}\"}}\n", request["id"])).await;
    });
    let (first, second) = (first.unwrap(), second.unwrap());
    assert_whole(&first, 50);
    assert_whole(&second, 50);
    assert_eq!(slots.free(), 0);
    drop(first);
    assert_eq!(slots.free(), 1);
    drop(second);
    assert_eq!(slots.free(), 2);
}

#[tokio::test]
async fn a_body_and_a_stream_of_50_mb_arrive_whole() {
    let slots = Slots::new(1);
    let (upstream, _served, _incoming) = http(&slots).await;
    for name in ["sized", "sized stream"] {
        let answer = upstream.call_raw(sized(name, 50)).await.unwrap();
        assert_whole(&answer, 50);
        assert_eq!(slots.free(), 0, "{name}");
        drop(answer);
        assert_eq!(upstream.call_raw(sized(name, 70)).await.unwrap_err(), UpstreamError::TooLarge, "{name}");
        assert_eq!(slots.free(), 1, "{name}");
        // The bound of ordinary calls is what it was.
        assert_eq!(upstream.call(sized(name, 17)).await, Err(UpstreamError::TooLarge), "{name}");
        assert_eq!(upstream.call(sized(name, 15)).await.unwrap().as_str().unwrap().len(), 15 * MEGABYTE, "{name}");
    }
    assert_eq!(
        upstream.call_raw(sized("noise", 0)).await.unwrap_err().to_string(),
        "the server answered, but not to the call"
    );
}

#[tokio::test]
async fn a_message_of_50_mb_arrives_whole_over_a_socket() {
    let slots = Slots::new(1);
    let (_served, wire) = websocket::served(false).await;
    let (upstream, _incoming) = connect_sharing(&slots, wire).await;
    let upstream = upstream.unwrap();
    let large = |megabytes: usize| upstream.call_raw(call("large", json!({"megabytes": megabytes})));
    let answer = large(50).await.unwrap();
    assert_whole(&answer, 50);
    assert_eq!(slots.free(), 0);
    // Without a slot: what is read as ever is no raw answer.
    assert_eq!(large(2).await.unwrap_err(), UpstreamError::Busy);
    drop(answer);
    assert_whole(&large(2).await.unwrap(), 2);
    assert_eq!(large(70).await.unwrap_err(), UpstreamError::TooLarge);
    let EndReason::Lost(why) = upstream.ended().await else { panic!() };
    assert!(why.contains("64 MiB"), "{why}");
    upstream.close().await;
    assert_eq!(slots.free(), 1);
}

#[tokio::test]
async fn an_event_of_the_old_transport_arrives_whole() {
    let slots = Slots::new(1);
    let (_served, settings, _old) = sse::old("/messages").await;
    let (upstream, _incoming) = connect_sharing(&slots, Wire::Sse(settings)).await;
    let upstream = upstream.unwrap();
    let answer = upstream.call_raw(call("large", json!({}))).await.unwrap();
    assert_eq!((answer.as_ref().len(), slots.free()), ((17 << 20) + 2, 0));
    drop(answer);
    assert_eq!(upstream.call(call("large", json!({}))).await, Err(UpstreamError::TooLarge));
    assert_eq!(upstream.call_raw(call("echo", json!({"odd": 1}))).await.unwrap().as_ref(), br#"{"odd":1}"#);
    assert_eq!(slots.free(), 1);
}

#[tokio::test]
async fn a_line_over_64_mib_fails_its_call_only() {
    let slots = Slots::new(1);
    let (upstream, mut peer, _incoming) = lines(&slots).await;
    let (large, other, ()) = tokio::join!(upstream.call_raw(tool()), upstream.call_raw(tool()), async {
        let (large, other) = (peer.hear().await, peer.hear().await);
        answer_large(&mut peer, &large["id"], MAX_RAW_BYTES / MEGABYTE + 1).await;
        peer.answer(&other, json!(1)).await;
    });
    assert_eq!(large.unwrap_err(), UpstreamError::TooLarge);
    assert_eq!(other.unwrap().as_ref(), b"1");
    assert_eq!((slots.free(), upstream.counters().oversized.load(Ordering::Relaxed)), (1, 1));
    assert_answers(&upstream, &mut peer).await;
}

#[tokio::test]
async fn ordinary_calls_keep_their_bound_beside_raw_ones() {
    let slots = Slots::new(1);
    let (upstream, mut peer, _incoming) = lines(&slots).await;
    let (large, fits, raw, ()) =
        tokio::join!(upstream.call(tool()), upstream.call(tool()), upstream.call_raw(tool()), async {
            let (large, fits, raw) = (peer.hear().await, peer.hear().await, peer.hear().await);
            answer_large(&mut peer, &large["id"], 20).await;
            answer_large(&mut peer, &fits["id"], 3).await;
            peer.answer(&raw, json!({"a": 1})).await;
        });
    assert_eq!(large, Err(UpstreamError::TooLarge));
    assert_eq!(fits.unwrap().as_str().unwrap().len(), 3 * MEGABYTE);
    assert_eq!(raw.unwrap().as_ref(), br#"{"a":1}"#);
    assert_eq!(slots.free(), 1);
}

#[tokio::test(start_paused = true)]
async fn without_a_slot_a_raw_answer_is_dropped_and_an_ordinary_one_is_not() {
    let slots = Slots::new(1);
    let (upstream, mut peer, _incoming) = lines(&slots).await;
    let (held, ()) = tokio::join!(upstream.call_raw(tool()), async {
        let request = peer.hear().await;
        answer_large(&mut peer, &request["id"], 2).await;
    });
    let held = held.unwrap();
    let (small, late, huge, ordinary, ()) = tokio::join!(
        upstream.call_raw(tool()),
        upstream.call_raw(tool()),
        upstream.call_raw(tool()),
        upstream.call(tool()),
        async {
            let requests = [peer.hear().await, peer.hear().await, peer.hear().await, peer.hear().await];
            peer.answer(&requests[0], json!("small")).await;
            answer_large(&mut peer, &requests[3]["id"], 2).await;
            answer_large(&mut peer, &requests[1]["id"], 2).await;
            answer_large(&mut peer, &requests[2]["id"], 20).await;
        }
    );
    assert_eq!(small.unwrap().as_ref(), b"\"small\"");
    assert_eq!((late.unwrap_err(), huge.unwrap_err()), (UpstreamError::Busy, UpstreamError::Busy));
    assert_eq!(ordinary.unwrap().as_str().unwrap().len(), 2 * MEGABYTE);
    assert_whole(&held, 2);

    // One that becomes free while a message waits for it is taken.
    let (next, (), ()) = tokio::join!(
        upstream.call_raw(tool()),
        async {
            let request = peer.hear().await;
            answer_large(&mut peer, &request["id"], 2).await;
        },
        async {
            tokio::time::sleep(Duration::from_secs(2)).await;
            drop(held);
        }
    );
    assert_whole(&next.unwrap(), 2);
    assert_eq!(slots.free(), 1);
}

#[tokio::test]
async fn no_more_large_answers_are_held_than_there_are_slots() {
    let slots = Slots::new(2);
    let (upstream, _served, _incoming) = http(&slots).await;
    let calls = (0..8).map(|n| upstream.call_raw(sized(if n % 2 == 0 { "sized" } else { "sized stream" }, 3)));
    let answers = futures_util::future::join_all(calls).await;
    let held = answers.iter().filter(|answer| answer.is_ok()).count();
    let busy = answers.iter().filter(|answer| matches!(answer, Err(UpstreamError::Busy))).count();
    assert_eq!((held, busy, slots.free()), (2, 6, 0));
    drop(answers);
    // Where each is taken at once, all come.
    let calls = (0..8).map(|_| async { assert_whole(&upstream.call_raw(sized("sized", 2)).await.unwrap(), 2) });
    futures_util::future::join_all(calls).await;
    assert_eq!(slots.free(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_cancelled_within_its_answer_frees_the_slot() {
    let slots = Slots::new(1);
    let (upstream, mut peer, _incoming) = lines(&slots).await;
    for megabytes in [3, 20] {
        let cancel = CancellationToken::new();
        let outgoing = Outgoing { cancel: cancel.clone(), ..tool() };
        let (answer, ()) = tokio::join!(upstream.call_raw(outgoing), async {
            let request = peer.hear().await;
            peer.say_raw(&format!("{{\"id\":{},\"result\":\"", request["id"])).await;
            say_megabytes(&mut peer, megabytes).await;
            assert_eq!(slots.free(), 0);
            cancel.cancel();
        });
        assert_eq!(answer.unwrap_err(), UpstreamError::Cancelled);
        // The server says nothing more for the moment.
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert_eq!(slots.free(), 1);
        say_megabytes(&mut peer, 1).await;
        peer.say_raw("\"}\n").await;
        assert_answers(&upstream, &mut peer).await;
    }
}

#[tokio::test]
async fn so_does_one_whose_answer_has_a_stream_of_its_own() {
    let slots = Slots::new(1);
    let (upstream, _served, _incoming) = http(&slots).await;
    let cancel = CancellationToken::new();
    let outgoing = Outgoing { cancel: cancel.clone(), ..sized("stalled", 0) };
    let (answer, ()) = tokio::join!(upstream.call_raw(outgoing), async {
        while slots.free() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        cancel.cancel();
    });
    assert_eq!((answer.unwrap_err(), slots.free()), (UpstreamError::Cancelled, 1));
}

#[tokio::test(start_paused = true)]
async fn a_server_in_the_middle_of_a_large_message_is_alive() {
    let (upstream, mut peer, _incoming) = lines(&Slots::new(1)).await;
    let (answer, is_alive, ()) =
        tokio::join!(upstream.call_raw(tool()), upstream.ping(Duration::from_secs(5)), async {
            let (request, _ping) = (peer.hear().await, peer.hear().await);
            peer.say_raw(&format!("{{\"id\":{},\"result\":\"", request["id"])).await;
            for _ in 0..10 {
                say_megabytes(&mut peer, 1).await;
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            peer.say_raw("\"}\n").await;
        });
    assert!(is_alive);
    assert_whole(&answer.unwrap(), 10);
    assert!(!upstream.ping(Duration::from_secs(5)).await);
}

#[tokio::test(start_paused = true)]
async fn a_message_that_never_ends_does_not_keep_its_slot() {
    let slots = Slots::new(1);
    let (upstream, mut peer, _incoming) = lines(&slots).await;
    let (answer, ()) = tokio::join!(upstream.call_raw(tool()), async {
        let request = peer.hear().await;
        peer.say_raw(&format!("{{\"id\":{},\"result\":\"", request["id"])).await;
        say_megabytes(&mut peer, 20).await;
        tokio::time::sleep(Duration::from_secs(100)).await;
        assert_eq!(slots.free(), 0);
        tokio::time::sleep(Duration::from_secs(30)).await;
        assert_eq!(slots.free(), 1);
        peer.say_raw("\"}\n").await;
    });
    assert_eq!(answer.unwrap_err(), UpstreamError::Busy);
    assert_answers(&upstream, &mut peer).await;
}

#[tokio::test]
async fn a_connection_that_ends_frees_its_slots() {
    let slots = Slots::new(1);
    let (upstream, mut peer, _incoming) = lines(&slots).await;
    let (answer, ()) = tokio::join!(upstream.call_raw(tool()), async {
        let request = peer.hear().await;
        peer.say_raw(&format!("{{\"id\":{},\"result\":\"", request["id"])).await;
        say_megabytes(&mut peer, 3).await;
        assert_eq!(slots.free(), 0);
        drop(peer);
    });
    assert!(matches!(answer, Err(UpstreamError::Closed { may_have_run: true, .. })));
    upstream.close().await;
    assert_eq!(slots.free(), 1);
}

#[tokio::test]
async fn what_is_no_message_is_skipped_however_large() {
    let slots = Slots::new(1);
    let (upstream, mut peer, _incoming) = lines(&slots).await;
    let (answer, ()) = tokio::join!(upstream.call_raw(tool()), async {
        let request = peer.hear().await;
        let id = &request["id"];
        // Not JSON, nested beyond reason, an id that comes twice.
        peer.say_raw(&format!("{{\"id\":{id},\"result\":NaN,\"x\":\"{}\"}}\n", "x".repeat(2 * MEGABYTE))).await;
        peer.say_raw(&format!("{{\"id\":{id},\"result\":{}}}\n", "[".repeat(2 * MEGABYTE))).await;
        peer.say_raw(&format!("{{\"id\":{id},\"result\":[\"{}\"],\"id\":{id}}}\n", "x".repeat(2 * MEGABYTE))).await;
        peer.answer(&request, json!("at last")).await;
    });
    assert_eq!(answer.unwrap().as_ref(), b"\"at last\"");
    assert_eq!((slots.free(), upstream.counters().malformed.load(Ordering::Relaxed)), (1, 3));
}

#[tokio::test]
async fn a_batch_answers_raw_and_ordinary_calls() {
    let slots = Slots::new(1);
    let (upstream, mut peer, _incoming) = lines(&slots).await;
    let (first, second, third, ()) =
        tokio::join!(upstream.call_raw(tool()), upstream.call_raw(tool()), upstream.call(tool()), async {
            let ids = [peer.hear().await, peer.hear().await, peer.hear().await].map(|request| request["id"].clone());
            peer.say_raw(&format!("[{{\"id\":{},\"result\":\"", ids[0])).await;
            say_megabytes(&mut peer, 2).await;
            let rest = format!(
                "\"}}, 7, [], {{\"id\":{},\"result\":[1.0]}},{{\"result\":\"o\",\"id\":{}}}]\n",
                ids[1], ids[2]
            );
            peer.say_raw(&rest).await;
        });
    let (first, second) = (first.unwrap(), second.unwrap());
    assert_whole(&first, 2);
    assert_eq!((second.as_ref(), third.unwrap()), (b"[1.0]".as_slice(), json!("o")));
    assert_eq!(upstream.counters().malformed.load(Ordering::Relaxed), 2);
    // They are parts of one message.
    drop(first);
    assert_eq!(slots.free(), 0);
    drop(second);
    assert_eq!(slots.free(), 1);
}

#[tokio::test]
async fn an_error_is_parsed_and_bounded() {
    let slots = Slots::new(1);
    let (upstream, mut peer, _incoming) = lines(&slots).await;
    let (small, large, ()) = tokio::join!(upstream.call_raw(tool()), upstream.call_raw(tool()), async {
        let (small, large) = (peer.hear().await, peer.hear().await);
        peer.fail(&small, -32000, json!({"k": 1})).await;
        peer.fail(&large, -32000, json!("x".repeat(2 * MEGABYTE))).await;
    });
    let Err(UpstreamError::Rpc(error)) = small else { panic!() };
    assert_eq!((error.code, error.data), (-32000, Some(json!({"k": 1}))));
    assert_eq!(large.unwrap_err(), UpstreamError::TooLarge);
    assert_eq!(slots.free(), 1);
}
