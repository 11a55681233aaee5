//! One connection: our calls and their answers, what the server asks and tells by itself.
//!
//! Ids and progress tokens on the wire are our own; an answer or a progress that names no call of ours is
//! counted and forgotten. Nothing that a server sends can block the reader: queues that are full lose what
//! is new, and a request that nobody takes is answered with an error.

mod asked;
mod envelope;
#[cfg(fuzzing)]
pub(super) mod fuzzing;
mod message;
mod receive;
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
pub(super) use self::envelope::{ResultHead, head_of};
pub(super) use self::message::MAX_MESSAGE_BYTES;
use self::table::{Outcome, Pending, Table, Waiter};
use super::era::{self, ClientIdentity, Era};
use super::error::{EndReason, UpstreamError};
use super::large_message_slots::{Room, SMALL_BYTES, Slots};
use super::link::{Link, Parcel};
use super::{Incoming, Outgoing, RawAnswer};

/// Messages of no call of ours that are posted at once.
const MAX_CONTROLS: usize = 64;

/// What a server did wrong, or what was lost, since the connection began.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub malformed: AtomicU64,
    pub unknown_answers: AtomicU64,
    pub dropped: AtomicU64,
    pub oversized: AtomicU64,
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
    slots: Slots,
}

/// What this side brings to a connection.
#[derive(Clone)]
pub(super) struct Side {
    pub(super) who: ClientIdentity,
    pub(super) unrelated: mpsc::Sender<Incoming>,
    pub(super) slots: Slots,
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
    pub(super) fn new(link: Link, side: Side) -> Arc<Self> {
        let Side { who, unrelated, slots } = side;
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
            slots,
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

    fn wants_raw(&self, origin: Option<u64>) -> bool {
        origin.map_or_else(|| self.table.has_raw(), |id| self.table.is_raw(id))
    }

    /// To be asked before a message grows to a size: it gets a slot if it may be a raw answer, and loses it when it
    /// cannot be one any more. `origin` is the call on whose own stream it comes.
    pub(super) async fn make_room(&self, room: &mut Room, size: usize, origin: Option<u64>) {
        if size <= SMALL_BYTES {
            return;
        }
        match room {
            Room::Ordinary if self.wants_raw(origin) => {
                let slot = self.slots.take(|| {
                    // It is we who are silent.
                    self.heard();
                    self.wants_raw(origin)
                });
                *room = slot.await.map_or(Room::Denied, Room::large);
            }
            Room::Large { .. } if room.is_over() || !self.wants_raw(origin) => *room = Room::Denied,
            Room::Ordinary | Room::Large { .. } | Room::Denied => {}
        }
    }

    /// Whether the answer is still awaited.
    pub(super) fn awaits(&self, id: u64) -> bool {
        self.table.contains(id)
    }

    /// The result as values, and the size of its message.
    pub(super) async fn call(self: &Arc<Self>, call: Outgoing, style: Style<'_>) -> Outcome {
        let (done, answer) = oneshot::channel();
        self.exchange(call, style, Waiter::Parsed(done), answer).await
    }

    /// The result as the server wrote it.
    pub(super) async fn call_raw(self: &Arc<Self>, call: Outgoing) -> Result<RawAnswer, UpstreamError> {
        let (done, answer) = oneshot::channel();
        self.exchange(call, Style::Agreed, Waiter::Raw(done), answer).await
    }

    async fn exchange<T>(
        self: &Arc<Self>,
        call: Outgoing,
        style: Style<'_>,
        waiter: Waiter,
        mut answer: oneshot::Receiver<Result<T, UpstreamError>>,
    ) -> Result<T, UpstreamError> {
        let Outgoing { method, mut params, cancel, deadline, related } = call;
        let silence = deadline.or(self.link.patience());
        let token = params.as_ref().and_then(|params| params.get("_meta")?.get("progressToken")).cloned();
        let has_token = token.is_some();
        let id = self.table.add(Pending { waiter, related, token, heard: Instant::now(), asked: 0 })?;
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
