//! Messages of hostile servers, for the fuzz target `rpc_front`.

use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::envelope::{self, Envelope};
use super::message::{self, Message};
use super::table::{Pending, Waiter};
use super::{Connection, Side};
use crate::upstream::era::ClientIdentity;
use crate::upstream::error::EndReason;
use crate::upstream::large_message_slots::Slots;
use crate::upstream::link::Link;
use crate::upstream::outbox::Outbox;

const QUEUE: usize = 4;

/// Asserts that both parsers agree: the one that builds values, and the one that only extracts the result.
pub fn readers(text: &[u8]) {
    let (head, tail) = text.split_at(text.len() / 2);
    message::id_of_oversized(head, tail);
    let Ok(mut parts) = envelope::messages(text) else { return };
    let (Some(part), true) = (parts.pop(), parts.is_empty()) else { return };
    let values = match message::read(part) {
        Ok((mut messages, 0)) if messages.len() == 1 => messages.pop(),
        _ => None,
    };
    match (values, envelope::read(part)) {
        (Some(Message::Response { id, outcome: Ok(value) }), read) => {
            let Ok(Envelope::Result(same, raw)) = read else { panic!("{read:?} is no result") };
            assert_eq!((same, serde_json::from_slice::<Value>(raw).expect("JSON")), (id, value));
            envelope::head_of(raw);
        }
        (Some(Message::Response { id, outcome: Err(_) }), read) => assert_eq!(read, Ok(Envelope::Error(id))),
        (Some(_), read) => assert_eq!(read, Ok(Envelope::Other)),
        (None, _) => {}
    }
}

/// Lines of a server while two calls wait: nothing waits without limit, and both calls can still end.
pub fn connection(lines: &[u8]) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let _inside = runtime.enter();
    let who = ClientIdentity { name: "fuzz".into(), version: "0".into(), capabilities: json!({}) };
    let (unrelated, mut told) = mpsc::channel(QUEUE);
    let link = Link::Lines(Outbox::new(Box::new(tokio::io::sink())));
    let connection = Connection::new(link, Side { who, unrelated, slots: Slots::new(1) });
    let (related, mut heard) = mpsc::channel(QUEUE);
    let (parsed, mut parsed_answer) = oneshot::channel();
    let (raw, mut raw_answer) = oneshot::channel();
    let pending =
        |waiter, related| Pending { waiter, related, token: Some(json!("t")), heard: Instant::now(), asked: 0 };
    connection.table.add(pending(Waiter::Parsed(parsed), Some(related))).expect("room");
    let raw = connection.table.add(pending(Waiter::Raw(raw), None)).expect("room");
    for line in lines.split(|byte| *byte == b'\n').take(64) {
        connection.receive(&line.into(), None);
    }
    runtime.block_on(tokio::task::yield_now());
    for queue in [&mut told, &mut heard] {
        let mut length = 0;
        while queue.try_recv().is_ok() {
            length += 1;
        }
        assert!(length <= QUEUE);
    }
    if let Ok(Ok(answer)) = raw_answer.try_recv() {
        serde_json::from_slice::<&serde_json::value::RawValue>(answer.as_ref()).expect("JSON");
        answer.head();
        assert!(!connection.table.contains(raw));
    }
    connection.close(EndReason::Closed);
    assert!(parsed_answer.try_recv().is_ok() || connection.table.only().is_none());
}
