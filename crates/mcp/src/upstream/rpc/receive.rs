//! What comes from the server, and whom it is for.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::envelope::{self, Envelope};
use super::message::{self, AnswerId, Message};
use super::table::Waiter;
use super::{Connection, MAX_MESSAGE_BYTES, asked, count};
use crate::era::SUBSCRIPTION_KEY;
use crate::upstream::error::{RpcError, UpstreamError};
use crate::upstream::large_message_slots::SMALL_BYTES;
use crate::upstream::link::Parcel;
use crate::upstream::raw::Received;
use crate::upstream::{Incoming, RawAnswer};

/// A notification larger than this is dropped: it may wait in a queue with many others.
const MAX_NOTIFICATION_BYTES: usize = 1024 * 1024;

impl Connection {
    /// Takes a message, or a batch, from the server. `origin` is the call on whose own stream it came.
    /// Says whether it was one.
    pub(crate) fn receive(self: &Arc<Self>, received: &Received<'_>, origin: Option<u64>) -> bool {
        self.heard();
        if self.table.has_raw() || received.bytes().len() > MAX_MESSAGE_BYTES {
            return self.receive_beside_raw(received, origin);
        }
        self.receive_parsed(received.bytes(), origin)
    }

    fn receive_parsed(self: &Arc<Self>, bytes: &[u8], origin: Option<u64>) -> bool {
        let Ok((messages, left_out)) = message::read(bytes) else {
            count(&self.counters.malformed, 1);
            return false;
        };
        count(&self.counters.malformed, left_out);
        for message in messages {
            match message {
                Message::Response { id, outcome } => self.receive_answer(id, outcome, bytes.len(), origin),
                Message::Request { id, method, params } => {
                    self.receive_request(id, method, params, bytes.len(), origin);
                }
                Message::Notification { method, params } => {
                    self.receive_notification(method, params, bytes.len(), origin);
                }
            }
        }
        true
    }

    /// The same where some of it may be raw answers: those are cut out, the rest is read as ever.
    fn receive_beside_raw(self: &Arc<Self>, received: &Received<'_>, origin: Option<u64>) -> bool {
        let texts = envelope::messages(received.bytes()).unwrap_or_default();
        if texts.is_empty() {
            count(&self.counters.malformed, 1);
        }
        let mut is_any_read = false;
        for text in texts {
            is_any_read |= self.receive_one(text, received, origin);
        }
        is_any_read
    }

    fn receive_one(self: &Arc<Self>, text: &[u8], received: &Received<'_>, origin: Option<u64>) -> bool {
        let Ok(envelope) = envelope::read(text) else {
            count(&self.counters.malformed, 1);
            return false;
        };
        match envelope {
            Envelope::Result(AnswerId::Ours(id), result) if self.table.is_raw(id) => {
                self.receive_raw(id, result, received);
            }
            // An error is parsed, and no reason needs to be long.
            Envelope::Error(AnswerId::Ours(id)) if self.table.is_raw(id) && text.len() > SMALL_BYTES => {
                self.fail(Some(id), UpstreamError::TooLarge);
            }
            Envelope::Result(AnswerId::Ours(id), _) | Envelope::Error(AnswerId::Ours(id))
                if text.len() > MAX_MESSAGE_BYTES =>
            {
                self.fail(Some(id), UpstreamError::TooLarge);
            }
            Envelope::Result(..) | Envelope::Error(_) | Envelope::Other => {
                if text.len() <= MAX_MESSAGE_BYTES {
                    return self.receive_parsed(text, origin);
                }
                self.fail(None, UpstreamError::TooLarge);
            }
        }
        true
    }

    fn receive_raw(&self, id: u64, result: &[u8], received: &Received<'_>) {
        let is_small = received.bytes().len() <= SMALL_BYTES;
        let slot = received.slot.clone().or_else(|| if is_small { None } else { self.slots.try_take() });
        let Some(call) = self.table.remove(id) else { return };
        // Ids are used once, so it is still the call that was found to want it raw.
        let Waiter::Raw(done) = call.waiter else { return };
        let has_room = is_small || slot.is_some();
        let answer = has_room.then(|| RawAnswer::new(received.cut(result), slot)).ok_or(UpstreamError::Busy);
        let _ = done.send(answer);
    }

    /// A message that is too large to be read, or that there was no room for, was skipped: the call it answers, if that
    /// can be told, fails.
    pub(crate) fn receive_oversized(&self, head: &[u8], tail: &[u8], origin: Option<u64>, why: UpstreamError) {
        self.heard();
        let id = origin.or_else(|| message::id_of_oversized(head, tail)).or_else(|| self.table.only());
        self.fail(id, why);
    }

    fn fail(&self, id: Option<u64>, why: UpstreamError) {
        count(&self.counters.oversized, 1);
        if let Some(call) = id.and_then(|id| self.table.remove(id)) {
            // Only raw answers wait for room.
            let why = if call.waiter.is_raw() { why } else { UpstreamError::TooLarge };
            call.waiter.fail(why);
        }
    }

    fn receive_answer(&self, id: AnswerId, outcome: Result<Value, RpcError>, size: usize, origin: Option<u64>) {
        let call = match id {
            AnswerId::Ours(id) => self.table.remove(id),
            // Only an error can be about a request that was not understood.
            AnswerId::Unnamed if outcome.is_err() => {
                origin.or_else(|| self.table.only()).and_then(|id| self.table.remove(id))
            }
            AnswerId::Unnamed => None,
        };
        let Some(call) = call else {
            count(&self.counters.unknown_answers, 1);
            return;
        };
        match (call.waiter, outcome) {
            (Waiter::Parsed(done), Ok(result)) => drop(done.send(Ok((result, size)))),
            (waiter, Err(error)) => waiter.fail(UpstreamError::Rpc(error)),
            // Its answer was looked for before values were made of any.
            (Waiter::Raw(_), Ok(_)) => {}
        }
    }

    fn receive_notification(&self, method: String, params: Option<Value>, size: usize, origin: Option<u64>) {
        match method.as_str() {
            "notifications/progress" => return self.receive_progress(method, params),
            "notifications/cancelled" => {
                if let Some(id) = params.as_ref().and_then(|params| params.get("requestId")) {
                    self.asked.withdrawn(id);
                }
                return;
            }
            "notifications/subscriptions/acknowledged" => return,
            _ => {}
        }
        if size > MAX_NOTIFICATION_BYTES {
            return count(&self.counters.dropped, 1);
        }
        // These are about the server as a whole, whatever call they come with.
        let is_global = method.ends_with("/list_changed") || method == "notifications/resources/updated";
        let call = if is_global { None } else { origin.or_else(|| self.table.only_related()) };
        let params = without_subscription(params);
        let related = call.and_then(|id| self.table.heard(id, |call| call.related.clone()).flatten());
        let queue = related.as_ref().unwrap_or(&self.unrelated);
        if queue.try_send(Incoming::Notification { method, params }).is_err() {
            count(&self.counters.dropped, 1);
        }
    }

    fn receive_progress(&self, method: String, params: Option<Value>) {
        let mut params = params.unwrap_or_default();
        let id = params.get("progressToken").and_then(message::own_number);
        let found = id.and_then(|id| self.table.heard(id, |call| call.token.clone().zip(call.related.clone())));
        match (found, params.get_mut("progressToken")) {
            (Some(Some((token, related))), Some(named)) => {
                *named = token;
                if related.try_send(Incoming::Notification { method, params: Some(params) }).is_err() {
                    count(&self.counters.dropped, 1);
                }
            }
            // Nobody asked for it.
            _ => count(&self.counters.dropped, 1),
        }
    }

    fn receive_request(
        self: &Arc<Self>,
        id: Value,
        method: String,
        params: Option<Value>,
        size: usize,
        origin: Option<u64>,
    ) {
        if method == "ping" {
            return self.link.post(self, message::answer(&id, &Ok(json!({}))));
        }
        let Some(withdrawn) = self.asked.add(&id, size) else {
            let busy = RpcError::new(RpcError::INTERNAL_ERROR, "too many requests wait for this client");
            return self.link.post(self, message::answer(&id, &Err(busy)));
        };
        let (answer, answered) = oneshot::channel();
        let call = origin.or_else(|| self.table.only_related());
        let related = call.and_then(|id| {
            let related = self.table.heard(id, |call| {
                call.asked += usize::from(call.related.is_some());
                call.related.clone()
            });
            related.flatten().map(|queue| (id, queue))
        });
        let queue = related.as_ref().map_or(&self.unrelated, |(_, queue)| queue);
        let is_taken = queue.try_send(Incoming::Request { method, params, answer }).is_ok();
        let call = related.map(|(id, _)| id);
        if !is_taken {
            count(&self.counters.dropped, 1);
        }
        let connection = Arc::clone(self);
        self.spawn(async move {
            let outcome = asked::outcome(answered, &withdrawn).await;
            connection.asked.remove(&id);
            if let Some(call) = call {
                connection.table.heard(call, |call| call.asked = call.asked.saturating_sub(1));
            }
            if let Some(outcome) = outcome {
                let body = message::answer(&id, &outcome);
                let _ = connection.link.deliver(&connection, Parcel::bare(body)).await;
            }
        });
    }
}

/// Which subscription a notification came through is between the server and us.
fn without_subscription(mut params: Option<Value>) -> Option<Value> {
    let object = params.as_mut()?.as_object_mut()?;
    let Some(meta) = object.get_mut("_meta").and_then(Value::as_object_mut) else { return params };
    if meta.shift_remove(SUBSCRIPTION_KEY).is_none() {
        return params;
    }
    if meta.is_empty() {
        object.shift_remove("_meta");
    }
    if object.is_empty() { None } else { params }
}
