//! One connection: our calls and their answers, what the server asks and tells by itself.
//!
//! Ids and progress tokens on the wire are our own; an answer or a progress that names no call of ours is
//! counted and forgotten. Nothing that a server sends can block the reader: queues that are full lose what
//! is new, and a request that nobody takes is answered with an error.

mod asked;
mod message;
mod table;

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::asked::Asked;
pub(super) use self::message::MAX_MESSAGE_BYTES;
use self::message::{AnswerId, Message};
use self::table::{Outcome, Pending, Table};
use super::era::{self, ClientIdentity, Era};
use super::error::{EndReason, RpcError, UpstreamError};
use super::link::{Link, Parcel};
use super::{Incoming, Outgoing};
use crate::era::SUBSCRIPTION_KEY;

/// A notification larger than this is dropped: it may wait in a queue with many others.
const MAX_NOTIFICATION_BYTES: usize = 1024 * 1024;

/// Messages of no call of ours that are posted at once.
const MAX_CONTROLS: usize = 64;

/// What a server did wrong, or what was lost, since the connection began.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) malformed: AtomicU64,
    pub(crate) unknown_answers: AtomicU64,
    pub(crate) dropped: AtomicU64,
    pub(crate) oversized: AtomicU64,
}

fn count(counter: &AtomicU64, by: usize) {
    counter.fetch_add(by as u64, Ordering::Relaxed);
}

pub(super) struct Connection {
    pub(super) link: Link,
    pub(super) who: ClientIdentity,
    /// Set when both sides have agreed.
    pub(super) era: OnceLock<Era>,
    pub(super) tasks: TaskTracker,
    pub(super) counters: Counters,
    table: Table,
    asked: Asked,
    unrelated: mpsc::Sender<Incoming>,
    began: Instant,
    heard_ms: AtomicU64,
    end: OnceLock<EndReason>,
    closed: CancellationToken,
    controls: Arc<Semaphore>,
}

/// In which words a request is put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Style<'a> {
    /// Of the era that was agreed on.
    Agreed,
    /// Of the legacy handshake, which cannot be withdrawn.
    Bare,
    /// Of a modern version that is being tried.
    Trying(&'a Era),
}

impl Connection {
    pub(super) fn new(link: Link, who: ClientIdentity, unrelated: mpsc::Sender<Incoming>) -> Arc<Self> {
        Arc::new(Self {
            link,
            who,
            era: OnceLock::new(),
            tasks: TaskTracker::new(),
            counters: Counters::default(),
            table: Table::default(),
            asked: Asked::default(),
            unrelated,
            began: Instant::now(),
            heard_ms: AtomicU64::new(0),
            end: OnceLock::new(),
            closed: CancellationToken::new(),
            controls: Arc::new(Semaphore::new(MAX_CONTROLS)),
        })
    }

    /// Runs until it is done or the connection is closed.
    pub(super) fn spawn(self: &Arc<Self>, task: impl Future<Output = ()> + Send + 'static) {
        let closed = self.closed.clone();
        self.tasks.spawn(async move {
            let _ = closed.run_until_cancelled(task).await;
        });
    }

    /// The same for what a server can provoke: dropped where there are too many, or no runtime any more.
    pub(super) fn spawn_control(self: &Arc<Self>, task: impl Future<Output = ()> + Send + 'static) {
        let Ok(permit) = Arc::clone(&self.controls).try_acquire_owned() else {
            return count(&self.counters.dropped, 1);
        };
        if tokio::runtime::Handle::try_current().is_ok() {
            self.spawn(async move {
                task.await;
                drop(permit);
            });
        }
    }

    pub(super) async fn closed(&self) {
        self.closed.cancelled().await;
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.is_cancelled()
    }

    pub(super) fn end_reason(&self) -> EndReason {
        self.end.get().cloned().unwrap_or(EndReason::Closed)
    }

    /// Ends everything. The first reason stays.
    pub(super) fn close(&self, reason: EndReason) {
        let reason = self.end.get_or_init(|| reason);
        self.table.close(&reason.to_string());
        self.link.close(&self.tasks);
        self.tasks.close();
        self.closed.cancel();
    }

    pub(super) fn last_heard(&self) -> Instant {
        self.began + Duration::from_millis(self.heard_ms.load(Ordering::Relaxed))
    }

    /// Something came from the server, be it only a keep-alive.
    pub(super) fn heard(&self) {
        let since = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.heard_ms.store(since, Ordering::Relaxed);
    }

    /// Whether the answer is still awaited.
    pub(super) fn awaits(&self, id: u64) -> bool {
        self.table.contains(id)
    }

    pub(super) async fn call(self: &Arc<Self>, call: Outgoing, style: Style<'_>) -> Outcome {
        let Outgoing { method, mut params, cancel, deadline, related } = call;
        let silence = deadline.or(self.link.patience());
        let token = params.as_ref().and_then(|params| params.get("_meta")?.get("progressToken")).cloned();
        let (done, mut answer) = oneshot::channel();
        let has_token = token.is_some();
        let id = self.table.add(Pending { done, related, token, heard: Instant::now(), asked: 0 })?;
        let mut in_flight = InFlight { connection: self, id, withdraw: false };
        if has_token
            && let Some(token) = params.as_mut().and_then(|params| params.get_mut("_meta")?.get_mut("progressToken"))
        {
            *token = id.into();
        }
        let era = match style {
            Style::Agreed => self.era.get(),
            Style::Bare => None,
            Style::Trying(era) => Some(era),
        };
        era::dress(&mut params, era, &self.who);
        let headers = self.link.headers(&method, params.as_ref(), era);
        let parcel = Parcel {
            id: Some(id),
            body: message::request(id, &method, params.as_ref()),
            headers,
            opens_session: style == Style::Bare,
        };
        drop(params);
        if parcel.body.len() > MAX_MESSAGE_BYTES {
            return Err(UpstreamError::TooLarge);
        }
        in_flight.withdraw = style == Style::Agreed;

        let mut deliver = pin!(self.link.deliver(self, parcel));
        let mut is_delivered = false;
        let mut timer = pin!(tokio::time::sleep(silence.unwrap_or(Duration::MAX)));
        loop {
            tokio::select! {
                biased;
                outcome = &mut answer => {
                    in_flight.withdraw = false;
                    return outcome.unwrap_or_else(|_| Err(UpstreamError::lost(true, "the call was forgotten")));
                }
                () = cancel.cancelled() => return Err(UpstreamError::Cancelled),
                delivered = &mut deliver, if !is_delivered => match delivered {
                    Ok(()) => is_delivered = true,
                    Err(error) => {
                        in_flight.withdraw = false;
                        return answer.try_recv().unwrap_or(Err(error));
                    }
                },
                () = &mut timer, if silence.is_some() => {
                    let until = self.table.silent_since(id).zip(silence).map(|(since, silence)| since + silence);
                    match until {
                        Some(until) if until > Instant::now() => timer.as_mut().reset(until),
                        Some(_) => return Err(UpstreamError::TimedOut),
                        // The answer is in the channel.
                        None => timer.as_mut().reset(Instant::now() + Duration::from_secs(1)),
                    }
                }
            }
        }
    }

    pub(super) async fn notify(self: &Arc<Self>, method: &str, mut params: Option<Value>) -> Result<(), UpstreamError> {
        if self.is_closed() {
            return Err(UpstreamError::lost(false, self.end_reason().to_string()));
        }
        let era = self.era.get();
        if era.is_some_and(|era| !era.is_modern()) {
            era::dress(&mut params, era, &self.who);
        }
        let headers = self.link.headers(method, params.as_ref(), era);
        let body = message::notification(method, params.as_ref());
        if body.len() > MAX_MESSAGE_BYTES {
            return Err(UpstreamError::TooLarge);
        }
        self.link.deliver(self, Parcel { headers, ..Parcel::bare(body) }).await
    }

    /// Tells whoever listens, as if the server had.
    pub(super) fn tell(&self, method: String) {
        if self.unrelated.try_send(Incoming::Notification { method, params: None }).is_err() {
            count(&self.counters.dropped, 1);
        }
    }

    /// Tells the server that nobody waits for the answer any more.
    fn withdraw(self: &Arc<Self>, id: u64) {
        // Over modern HTTP closing the stream says it, and the stream is closed already.
        if self.link.is_http() && self.era.get().is_some_and(Era::is_modern) {
            return;
        }
        let params = json!({ "requestId": id, "reason": "the caller no longer waits" });
        let body = message::notification("notifications/cancelled", Some(&params));
        self.link.post(self, body);
    }

    /// Takes a message, or a batch, from the server. `origin` is the call on whose own stream it came.
    /// Says whether it was one.
    pub(super) fn receive(self: &Arc<Self>, bytes: &[u8], origin: Option<u64>) -> bool {
        self.heard();
        let Ok((messages, left_out)) = message::read(bytes) else {
            count(&self.counters.malformed, 1);
            return false;
        };
        count(&self.counters.malformed, left_out);
        for message in messages {
            match message {
                Message::Answer { id, outcome } => self.receive_answer(id, outcome, bytes.len(), origin),
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

    /// A message that is too large to be read was skipped: the call it answers, if that can be told, fails.
    pub(super) fn receive_oversized(&self, head: &[u8], tail: &[u8], origin: Option<u64>) {
        self.heard();
        count(&self.counters.oversized, 1);
        let id = origin.or_else(|| message::id_of_oversized(head, tail)).or_else(|| self.table.only());
        if let Some(call) = id.and_then(|id| self.table.remove(id)) {
            let _ = call.done.send(Err(UpstreamError::TooLarge));
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
        let _ = call.done.send(outcome.map(|result| (result, size)).map_err(UpstreamError::Rpc));
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

/// A call that is under way: dropped before its answer, it is forgotten, and the server told.
struct InFlight<'a> {
    connection: &'a Arc<Connection>,
    id: u64,
    withdraw: bool,
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        if self.connection.table.remove(self.id).is_some() && self.withdraw {
            self.connection.withdraw(self.id);
        }
    }
}
