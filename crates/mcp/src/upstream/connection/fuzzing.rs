//! Messages of hostile servers, for the fuzz target `rpc_front`.

use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::envelope::{self, Envelope};
use super::message::{self, Message};
use super::pending_calls::{PendingCall, ResponseSender};
use super::{ClientSide, Connection};
use crate::upstream::era::ClientIdentity;
use crate::upstream::error::EndReason;
use crate::upstream::large_message_slots::Slots;
use crate::upstream::outbox::Outbox;
use crate::upstream::transport::Transport;

const QUEUE: usize = 4;

/// Asserts that both parsers agree: the one that builds values, and the one that only extracts the result.
pub fn readers(text: &[u8]) {
    let (head, tail) = text.split_at(text.len() / 2);
    message::oversized_call_id(head, tail);
    let Ok(mut parts) = envelope::messages(text) else { return };
    let (Some(part), true) = (parts.pop(), parts.is_empty()) else { return };
    let values = match message::read(part) {
        Ok((mut messages, 0)) if messages.len() == 1 => messages.pop(),
        _ => None,
    };
    match (values, envelope::read(part)) {
        (Some(Message::Response { id, outcome: Ok(value) }), read) => {
            let Ok(Envelope::Result(same, raw)) = read else { panic!("{read:?} is not a result") };
            assert_eq!((same, serde_json::from_slice::<Value>(raw).expect("JSON")), (id, value));
            envelope::result_flags(raw);
        }
        (Some(Message::Response { id, outcome: Err(_) }), read) => assert_eq!(read, Ok(Envelope::Error(id))),
        (Some(_), read) => assert_eq!(read, Ok(Envelope::Other)),
        (None, _) => {}
    }
}

/// Feeds lines of a server while two calls are pending. Asserts that the queues are limited and both calls can end.
pub fn connection(lines: &[u8]) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let _inside = runtime.enter();
    let client = ClientIdentity { name: "fuzz".into(), version: "0".into(), capabilities: json!({}) };
    let (unrelated, mut unrelated_messages) = mpsc::channel(QUEUE);
    let link = Transport::Stdio(Outbox::new(Box::new(tokio::io::sink())));
    let connection = Connection::new(link, ClientSide { client, unrelated, slots: Slots::new(1) });
    let (related, mut related_messages) = mpsc::channel(QUEUE);
    let (parsed, mut parsed_response) = oneshot::channel();
    let (raw, mut raw_response) = oneshot::channel();
    let pending = |sender, related| PendingCall {
        sender,
        related,
        token: Some(json!("t")),
        last_activity: Instant::now(),
        open_requests: 0,
    };
    connection.calls.add(pending(ResponseSender::Parsed(parsed), Some(related))).expect("below the limit");
    let raw = connection.calls.add(pending(ResponseSender::Raw(raw), None)).expect("below the limit");
    for line in lines.split(|byte| *byte == b'\n').take(64) {
        connection.receive(&line.into(), None);
    }
    runtime.block_on(tokio::task::yield_now());
    for queue in [&mut unrelated_messages, &mut related_messages] {
        let mut length = 0;
        while queue.try_recv().is_ok() {
            length += 1;
        }
        assert!(length <= QUEUE);
    }
    if let Ok(Ok(result)) = raw_response.try_recv() {
        serde_json::from_slice::<&serde_json::value::RawValue>(result.as_ref()).expect("JSON");
        result.flags();
        assert!(!connection.calls.contains(raw));
    }
    connection.close(EndReason::Closed);
    assert!(parsed_response.try_recv().is_ok() || connection.calls.only_call().is_none());
}
