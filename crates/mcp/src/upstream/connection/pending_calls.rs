//! The calls that wait for a response, by id.

use ringfence_core::sync::Mutex;
use std::collections::HashMap;
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::upstream::error::UpstreamError;
use crate::upstream::{Incoming, RawResult};

/// Maximum number of calls that wait at a time.
const MAX_PENDING: usize = 4096;

/// The result of a call and the size of its message.
pub(super) type Outcome = Result<(Value, usize), UpstreamError>;

/// Passes the response to the caller: the result parsed, or as text.
pub(super) enum ResponseSender {
    Parsed(oneshot::Sender<Outcome>),
    Raw(oneshot::Sender<Result<RawResult, UpstreamError>>),
}

impl ResponseSender {
    pub(super) fn fail(self, error: UpstreamError) {
        match self {
            Self::Parsed(sender) => drop(sender.send(Err(error))),
            Self::Raw(sender) => drop(sender.send(Err(error))),
        }
    }

    pub(super) fn is_raw(&self) -> bool {
        matches!(self, Self::Raw(_))
    }
}

pub(super) struct PendingCall {
    pub(super) sender: ResponseSender,
    pub(super) related: Option<mpsc::Sender<Incoming>>,
    /// The progress token of the caller, if it set one.
    pub(super) token: Option<Value>,
    /// The time when a message for this call was last received.
    pub(super) last_activity: Instant,
    /// Number of requests of the server that belong to this call and wait for the client or its user.
    pub(super) open_requests: usize,
}

#[derive(Default)]
struct State {
    pending: HashMap<u64, PendingCall>,
    next_id: u64,
    /// The reason why the connection is closed; no further calls are accepted.
    closed: Option<String>,
}

#[derive(Default)]
pub(super) struct PendingCalls {
    state: Mutex<State>,
    /// Number of calls that expect raw results. Read for every message, therefore outside of the lock.
    raw_count: AtomicUsize,
}

impl PendingCalls {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Adds a call and returns its id.
    pub(super) fn add(&self, pending: PendingCall) -> Result<u64, UpstreamError> {
        let mut state = self.lock();
        if let Some(reason) = &state.closed {
            return Err(UpstreamError::closed(false, reason.clone()));
        }
        if state.pending.len() >= MAX_PENDING {
            return Err(UpstreamError::Refused(format!(
                "the server has reached the limit of {MAX_PENDING} concurrent calls"
            )));
        }
        state.next_id += 1;
        let id = state.next_id;
        self.raw_count.fetch_add(usize::from(pending.sender.is_raw()), Ordering::Relaxed);
        state.pending.insert(id, pending);
        Ok(id)
    }

    pub(super) fn remove(&self, id: u64) -> Option<PendingCall> {
        let call = self.lock().pending.remove(&id)?;
        self.raw_count.fetch_sub(usize::from(call.sender.is_raw()), Ordering::Relaxed);
        Some(call)
    }

    /// Whether any call expects a raw result.
    pub(super) fn has_raw(&self) -> bool {
        self.raw_count.load(Ordering::Relaxed) > 0
    }

    /// Whether the call is pending and expects a raw result.
    pub(super) fn is_raw(&self, id: u64) -> bool {
        self.has_raw() && self.lock().pending.get(&id).is_some_and(|call| call.sender.is_raw())
    }

    /// Returns the pending call if there is exactly one.
    pub(super) fn only_call(&self) -> Option<u64> {
        let state = self.lock();
        let mut ids = state.pending.keys();
        ids.next().copied().filter(|_| ids.next().is_none())
    }

    /// Returns the pending call that receives related messages, if there is exactly one.
    pub(super) fn only_related_call(&self) -> Option<u64> {
        let state = self.lock();
        let mut ids = state.pending.iter().filter(|(_, call)| call.related.is_some()).map(|(id, _)| *id);
        ids.next().filter(|_| ids.next().is_none())
    }

    pub(super) fn contains(&self, id: u64) -> bool {
        self.lock().pending.contains_key(&id)
    }

    /// Restarts the idle timeout of a call and returns the result of `access`.
    pub(super) fn touch<T>(&self, id: u64, access: impl FnOnce(&mut PendingCall) -> T) -> Option<T> {
        self.lock().pending.get_mut(&id).map(|call| {
            call.last_activity = Instant::now();
            access(call)
        })
    }

    /// Returns since when the call is idle: now, while the server waits for the client.
    pub(super) fn idle_since(&self, id: u64) -> Option<Instant> {
        let state = self.lock();
        let call = state.pending.get(&id)?;
        Some(if call.open_requests > 0 { Instant::now() } else { call.last_activity })
    }

    /// Fails every call and accepts no more.
    pub(super) fn close(&self, reason: &str) {
        let pending = {
            let mut state = self.lock();
            state.closed.get_or_insert_with(|| reason.to_owned());
            self.raw_count.store(0, Ordering::Relaxed);
            std::mem::take(&mut state.pending)
        };
        for call in pending.into_values() {
            call.sender.fail(UpstreamError::closed(true, reason));
        }
    }
}
