//! One connection: calls and their responses, and the messages that the server sends on its own initiative.
//!
//! Ids and progress tokens on the wire are chosen here. A response or progress notification that matches no call is
//! counted and dropped. A server cannot block the reader: a full queue drops new notifications, and a request that no
//! client accepts is answered with an error.

mod envelope;
#[cfg(fuzzing)]
pub(super) mod fuzzing;
mod message;
mod pending_calls;
mod receive;
mod server_requests;

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

pub(super) use self::envelope::{ResultFlags, result_flags};
pub(super) use self::message::MAX_MESSAGE_BYTES;
use self::pending_calls::{Outcome, PendingCall, PendingCalls, ResponseSender};
use self::server_requests::ServerRequests;
use super::era::{self, ClientIdentity, Era};
use super::error::{EndReason, UpstreamError};
use super::large_message_slots::{MAX_SMALL_BYTES, SizeLimit, Slots};
use super::transport::{OutgoingMessage, Transport};
use super::{Incoming, OutgoingCall, RawResult};

/// Maximum number of tasks that the server can cause at a time, see [`Connection::spawn_limited`].
const MAX_LIMITED_TASKS: usize = 64;

/// Counts of invalid and dropped messages of the server.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub malformed: AtomicU64,
    pub unknown_responses: AtomicU64,
    pub dropped: AtomicU64,
    pub oversized: AtomicU64,
}

fn count(counter: &AtomicU64, by: usize) {
    counter.fetch_add(by as u64, Ordering::Relaxed);
}

pub(super) struct Connection {
    pub(super) transport: Transport,
    pub(super) client: ClientIdentity,
    /// Set once the handshake is complete.
    pub(super) era: OnceLock<Era>,
    pub(super) tasks: TaskTracker,
    pub(super) counters: Counters,
    calls: PendingCalls,
    server_requests: ServerRequests,
    unrelated: mpsc::Sender<Incoming>,
    started: Instant,
    last_activity_ms: AtomicU64,
    end: OnceLock<EndReason>,
    closed: CancellationToken,
    limited_tasks: Arc<Semaphore>,
    slots: Slots,
}

/// The parts of a connection that this side provides.
#[derive(Clone)]
pub(super) struct ClientSide {
    pub(super) client: ClientIdentity,
    pub(super) unrelated: mpsc::Sender<Incoming>,
    pub(super) slots: Slots,
}

/// The era that a request is written for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestEra<'a> {
    /// The era of the connection.
    Negotiated,
    /// The legacy handshake. It cannot be cancelled.
    Handshake,
    /// A modern version that is being probed.
    Probe(&'a Era),
}

impl Connection {
    pub(super) fn new(transport: Transport, side: ClientSide) -> Arc<Self> {
        let ClientSide { client, unrelated, slots } = side;
        Arc::new(Self {
            transport,
            client,
            era: OnceLock::new(),
            tasks: TaskTracker::new(),
            counters: Counters::default(),
            calls: PendingCalls::default(),
            server_requests: ServerRequests::default(),
            unrelated,
            started: Instant::now(),
            last_activity_ms: AtomicU64::new(0),
            end: OnceLock::new(),
            closed: CancellationToken::new(),
            limited_tasks: Arc::new(Semaphore::new(MAX_LIMITED_TASKS)),
            slots,
        })
    }

    /// Spawns a task that is dropped when the connection is closed.
    pub(super) fn spawn(self: &Arc<Self>, task: impl Future<Output = ()> + Send + 'static) {
        let closed = self.closed.clone();
        self.tasks.spawn(async move {
            let _ = closed.run_until_cancelled(task).await;
        });
    }

    /// Spawns a task that the server can cause. Drops it if there are too many, or if there is no runtime any more.
    pub(super) fn spawn_limited(self: &Arc<Self>, task: impl Future<Output = ()> + Send + 'static) {
        let Ok(permit) = Arc::clone(&self.limited_tasks).try_acquire_owned() else {
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

    /// Closes the connection and fails its calls. Later calls do not change the reason.
    pub(super) fn close(&self, reason: EndReason) {
        let reason = self.end.get_or_init(|| reason);
        self.calls.close(&reason.to_string());
        self.transport.close(&self.tasks);
        self.tasks.close();
        self.closed.cancel();
    }

    pub(super) fn last_activity(&self) -> Instant {
        self.started + Duration::from_millis(self.last_activity_ms.load(Ordering::Relaxed))
    }

    /// Records that something was received from the server, including keep-alives.
    pub(super) fn record_activity(&self) {
        let since = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_activity_ms.store(since, Ordering::Relaxed);
    }

    fn expects_raw_result(&self, origin: Option<u64>) -> bool {
        origin.map_or_else(|| self.calls.has_raw(), |id| self.calls.is_raw(id))
    }

    /// Updates the limit of a message that is about to grow to `size`. A large message gets a slot if it may be a raw
    /// result, and loses it if no call waits for one any more. `origin` is the call on whose stream the message arrives.
    pub(super) async fn update_limit(&self, limit: &mut SizeLimit, size: usize, origin: Option<u64>) {
        if size <= MAX_SMALL_BYTES {
            return;
        }
        match limit {
            SizeLimit::Ordinary if self.expects_raw_result(origin) => {
                let slot = self.slots.acquire(|| {
                    // The server is not read meanwhile, so its silence is no sign of a failure.
                    self.record_activity();
                    self.expects_raw_result(origin)
                });
                *limit = slot.await.map_or(SizeLimit::Denied, SizeLimit::large);
            }
            SizeLimit::Large { .. } if limit.is_expired() || !self.expects_raw_result(origin) => {
                *limit = SizeLimit::Denied;
            }
            SizeLimit::Ordinary | SizeLimit::Large { .. } | SizeLimit::Denied => {}
        }
    }

    /// Whether the call still waits for its response.
    pub(super) fn is_pending(&self, id: u64) -> bool {
        self.calls.contains(id)
    }

    /// Returns the parsed result and the size of its message.
    pub(super) async fn call(self: &Arc<Self>, call: OutgoingCall, era: RequestEra<'_>) -> Outcome {
        let (sender, response) = oneshot::channel();
        self.exchange(call, era, ResponseSender::Parsed(sender), response).await
    }

    /// Returns the result as the server wrote it.
    pub(super) async fn call_raw(self: &Arc<Self>, call: OutgoingCall) -> Result<RawResult, UpstreamError> {
        let (sender, response) = oneshot::channel();
        self.exchange(call, RequestEra::Negotiated, ResponseSender::Raw(sender), response).await
    }

    async fn exchange<T>(
        self: &Arc<Self>,
        call: OutgoingCall,
        request_era: RequestEra<'_>,
        sender: ResponseSender,
        mut response: oneshot::Receiver<Result<T, UpstreamError>>,
    ) -> Result<T, UpstreamError> {
        let OutgoingCall { method, mut params, cancel, idle_timeout, related } = call;
        let idle_timeout = idle_timeout.or(self.transport.default_idle_timeout());
        let token = params.as_ref().and_then(|params| params.get("_meta")?.get("progressToken")).cloned();
        let has_token = token.is_some();
        let id =
            self.calls.add(PendingCall { sender, related, token, last_activity: Instant::now(), open_requests: 0 })?;
        let mut guard = CancelOnDrop { connection: self, id, is_cancellable: false };
        if has_token
            && let Some(token) = params.as_mut().and_then(|params| params.get_mut("_meta")?.get_mut("progressToken"))
        {
            *token = id.into();
        }
        let era = match request_era {
            RequestEra::Negotiated => self.era.get(),
            RequestEra::Handshake => None,
            RequestEra::Probe(era) => Some(era),
        };
        era::adapt_metadata(&mut params, era, &self.client);
        let headers = self.transport.headers(&method, params.as_ref(), era);
        let message = OutgoingMessage {
            id: Some(id),
            body: message::request(id, &method, params.as_ref()),
            headers,
            opens_session: request_era == RequestEra::Handshake,
        };
        drop(params);
        if message.body.len() > MAX_MESSAGE_BYTES {
            return Err(UpstreamError::TooLarge);
        }
        guard.is_cancellable = request_era == RequestEra::Negotiated;

        let mut send = pin!(self.transport.send(self, message));
        let mut is_sent = false;
        let mut timer = pin!(tokio::time::sleep(idle_timeout.unwrap_or(Duration::MAX)));
        loop {
            tokio::select! {
                biased;
                outcome = &mut response => {
                    guard.is_cancellable = false;
                    return outcome.unwrap_or_else(|_| Err(UpstreamError::closed(true, "the call was dropped without a response")));
                }
                () = cancel.cancelled() => return Err(UpstreamError::Cancelled),
                sent = &mut send, if !is_sent => match sent {
                    Ok(()) => is_sent = true,
                    Err(error) => {
                        guard.is_cancellable = false;
                        return response.try_recv().unwrap_or(Err(error));
                    }
                },
                () = &mut timer, if idle_timeout.is_some() => {
                    let deadline = self.calls.idle_since(id).zip(idle_timeout).map(|(since, timeout)| since + timeout);
                    match deadline {
                        Some(deadline) if deadline > Instant::now() => timer.as_mut().reset(deadline),
                        Some(_) => return Err(UpstreamError::TimedOut),
                        // The response is in the channel.
                        None => timer.as_mut().reset(Instant::now() + Duration::from_secs(1)),
                    }
                }
            }
        }
    }

    pub(super) async fn notify(self: &Arc<Self>, method: &str, mut params: Option<Value>) -> Result<(), UpstreamError> {
        if self.is_closed() {
            return Err(UpstreamError::closed(false, self.end_reason().to_string()));
        }
        let era = self.era.get();
        if era.is_some_and(|era| !era.is_modern()) {
            era::adapt_metadata(&mut params, era, &self.client);
        }
        let headers = self.transport.headers(method, params.as_ref(), era);
        let body = message::notification(method, params.as_ref());
        if body.len() > MAX_MESSAGE_BYTES {
            return Err(UpstreamError::TooLarge);
        }
        self.transport.send(self, OutgoingMessage { headers, ..OutgoingMessage::without_headers(body) }).await
    }

    /// Emits a notification as if the server had sent it.
    pub(super) fn emit_notification(&self, method: String) {
        if self.unrelated.try_send(Incoming::Notification { method, params: None }).is_err() {
            count(&self.counters.dropped, 1);
        }
    }

    /// Notifies the server that a call is cancelled.
    fn send_cancelled(self: &Arc<Self>, id: u64) {
        // Over modern HTTP a closed stream cancels the request, and the stream is closed already.
        if self.transport.is_http() && self.era.get().is_some_and(Era::is_modern) {
            return;
        }
        let params = json!({ "requestId": id, "reason": "the caller no longer waits" });
        let body = message::notification("notifications/cancelled", Some(&params));
        self.transport.send_in_background(self, body);
    }
}

/// Removes a call when it is dropped, and cancels it at the server if it has no response yet.
struct CancelOnDrop<'a> {
    connection: &'a Arc<Connection>,
    id: u64,
    is_cancellable: bool,
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        if self.connection.calls.remove(self.id).is_some() && self.is_cancellable {
            self.connection.send_cancelled(self.id);
        }
    }
}
