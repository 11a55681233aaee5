//! Routes each message of the server to the call or the queue that it belongs to.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::envelope::{self, Envelope};
use super::message::{self, Message, ResponseId};
use super::pending_calls::ResponseSender;
use super::{Connection, MAX_MESSAGE_BYTES, count, server_requests};
use crate::era::SUBSCRIPTION_KEY;
use crate::upstream::error::{RpcError, UpstreamError};
use crate::upstream::large_message_slots::MAX_SMALL_BYTES;
use crate::upstream::received::ReceivedMessage;
use crate::upstream::transport::OutgoingMessage;
use crate::upstream::{Incoming, RawResult};

/// Maximum size of a notification, since many of them may wait in a queue. Larger ones are dropped.
const MAX_NOTIFICATION_BYTES: usize = 1024 * 1024;

impl Connection {
    /// Handles a message or a batch of the server. `origin` is the call on whose stream it arrived. Returns whether it
    /// was valid.
    pub(crate) fn receive(self: &Arc<Self>, received: &ReceivedMessage<'_>, origin: Option<u64>) -> bool {
        self.record_activity();
        if self.calls.has_raw() || received.bytes().len() > MAX_MESSAGE_BYTES {
            return self.receive_with_raw_calls(received, origin);
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
                Message::Response { id, outcome } => self.receive_response(id, outcome, bytes.len(), origin),
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

    /// Handles a message that may contain raw results. Those are extracted as text, the rest is parsed.
    fn receive_with_raw_calls(self: &Arc<Self>, received: &ReceivedMessage<'_>, origin: Option<u64>) -> bool {
        let texts = envelope::messages(received.bytes()).unwrap_or_default();
        if texts.is_empty() {
            count(&self.counters.malformed, 1);
        }
        let mut is_any_valid = false;
        for text in texts {
            is_any_valid |= self.receive_one(text, received, origin);
        }
        is_any_valid
    }

    fn receive_one(self: &Arc<Self>, text: &[u8], received: &ReceivedMessage<'_>, origin: Option<u64>) -> bool {
        let Ok(envelope) = envelope::read(text) else {
            count(&self.counters.malformed, 1);
            return false;
        };
        match envelope {
            Envelope::Result(ResponseId::Call(id), result) if self.calls.is_raw(id) => {
                self.receive_raw_result(id, result, received);
            }
            // An error is parsed, and needs no more space than a small message.
            Envelope::Error(ResponseId::Call(id)) if self.calls.is_raw(id) && text.len() > MAX_SMALL_BYTES => {
                self.fail(Some(id), UpstreamError::TooLarge);
            }
            Envelope::Result(ResponseId::Call(id), _) | Envelope::Error(ResponseId::Call(id))
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

    fn receive_raw_result(&self, id: u64, result: &[u8], received: &ReceivedMessage<'_>) {
        let is_small = received.bytes().len() <= MAX_SMALL_BYTES;
        let slot = received.slot.clone().or_else(|| if is_small { None } else { self.slots.try_acquire() });
        let Some(call) = self.calls.remove(id) else { return };
        // Ids are never reused, so this is still the call that expects a raw result.
        let ResponseSender::Raw(sender) = call.sender else { return };
        let has_slot = is_small || slot.is_some();
        let result = has_slot.then(|| RawResult::new(received.slice(result), slot)).ok_or(UpstreamError::Busy);
        let _ = sender.send(result);
    }

    /// Handles a message that was skipped because it is too large or no slot was free: fails its call if that can be
    /// determined from the first and last bytes.
    pub(crate) fn receive_oversized(&self, head: &[u8], tail: &[u8], origin: Option<u64>, reason: UpstreamError) {
        self.record_activity();
        let id = origin.or_else(|| message::oversized_call_id(head, tail)).or_else(|| self.calls.only_call());
        self.fail(id, reason);
    }

    fn fail(&self, id: Option<u64>, reason: UpstreamError) {
        count(&self.counters.oversized, 1);
        if let Some(call) = id.and_then(|id| self.calls.remove(id)) {
            // Only raw results need a slot.
            let reason = if call.sender.is_raw() { reason } else { UpstreamError::TooLarge };
            call.sender.fail(reason);
        }
    }

    fn receive_response(&self, id: ResponseId, outcome: Result<Value, RpcError>, size: usize, origin: Option<u64>) {
        let call = match id {
            ResponseId::Call(id) => self.calls.remove(id),
            // A server reports a request that it cannot parse with an error without an id.
            ResponseId::Unknown if outcome.is_err() => {
                origin.or_else(|| self.calls.only_call()).and_then(|id| self.calls.remove(id))
            }
            ResponseId::Unknown => None,
        };
        let Some(call) = call else {
            count(&self.counters.unknown_responses, 1);
            return;
        };
        match (call.sender, outcome) {
            (ResponseSender::Parsed(sender), Ok(result)) => drop(sender.send(Ok((result, size)))),
            (sender, Err(error)) => sender.fail(UpstreamError::Rpc(error)),
            // Not reached: while a call expects a raw result, responses are matched before they are parsed.
            (ResponseSender::Raw(_), Ok(_)) => {}
        }
    }

    fn receive_notification(&self, method: String, params: Option<Value>, size: usize, origin: Option<u64>) {
        match method.as_str() {
            "notifications/progress" => return self.receive_progress(method, params),
            "notifications/cancelled" => {
                if let Some(id) = params.as_ref().and_then(|params| params.get("requestId")) {
                    self.server_requests.cancel(id);
                }
                return;
            }
            "notifications/subscriptions/acknowledged" => return,
            _ => {}
        }
        if size > MAX_NOTIFICATION_BYTES {
            return count(&self.counters.dropped, 1);
        }
        // These concern the whole server, on whatever stream they arrive.
        let is_global = method.ends_with("/list_changed") || method == "notifications/resources/updated";
        let call = if is_global { None } else { origin.or_else(|| self.calls.only_related_call()) };
        let params = without_subscription_id(params);
        let related = call.and_then(|id| self.calls.touch(id, |call| call.related.clone()).flatten());
        let queue = related.as_ref().unwrap_or(&self.unrelated);
        if queue.try_send(Incoming::Notification { method, params }).is_err() {
            count(&self.counters.dropped, 1);
        }
    }

    fn receive_progress(&self, method: String, params: Option<Value>) {
        let mut params = params.unwrap_or_default();
        let id = params.get("progressToken").and_then(message::call_id);
        let found = id.and_then(|id| self.calls.touch(id, |call| call.token.clone().zip(call.related.clone())));
        match (found, params.get_mut("progressToken")) {
            (Some(Some((token, related))), Some(sent_token)) => {
                *sent_token = token;
                if related.try_send(Incoming::Notification { method, params: Some(params) }).is_err() {
                    count(&self.counters.dropped, 1);
                }
            }
            // The call requested no progress.
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
            return self.transport.send_in_background(self, message::response(&id, &Ok(json!({}))));
        }
        let Some(cancelled) = self.server_requests.add(&id, size) else {
            let error = RpcError::new(RpcError::INTERNAL_ERROR, "too many requests of this server wait for the client");
            return self.transport.send_in_background(self, message::response(&id, &Err(error)));
        };
        let (reply, response) = oneshot::channel();
        let call = origin.or_else(|| self.calls.only_related_call());
        let related = call.and_then(|id| {
            let related = self.calls.touch(id, |call| {
                call.open_requests += usize::from(call.related.is_some());
                call.related.clone()
            });
            related.flatten().map(|queue| (id, queue))
        });
        let queue = related.as_ref().map_or(&self.unrelated, |(_, queue)| queue);
        let is_queued = queue.try_send(Incoming::Request { method, params, reply }).is_ok();
        let call = related.map(|(id, _)| id);
        if !is_queued {
            count(&self.counters.dropped, 1);
        }
        let connection = Arc::clone(self);
        self.spawn(async move {
            let outcome = server_requests::outcome(response, &cancelled).await;
            connection.server_requests.remove(&id);
            if let Some(call) = call {
                connection.calls.touch(call, |call| call.open_requests = call.open_requests.saturating_sub(1));
            }
            if let Some(outcome) = outcome {
                let body = message::response(&id, &outcome);
                let _ = connection.transport.send(&connection, OutgoingMessage::without_headers(body)).await;
            }
        });
    }
}

/// Removes the subscription id, which is meaningful only between the server and this connection.
fn without_subscription_id(mut params: Option<Value>) -> Option<Value> {
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
