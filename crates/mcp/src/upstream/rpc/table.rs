//! The calls that wait for an answer, by our own ids.

use ringfence_core::sync::Mutex;
use std::collections::HashMap;
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::upstream::error::UpstreamError;
use crate::upstream::{Incoming, RawAnswer};

/// More calls at once than this are refused.
const MAX_PENDING: usize = 4096;

/// What a call ends with: the raw result and the size of its message.
pub(super) type Outcome = Result<(Value, usize), UpstreamError>;

/// Whoever waits for an answer, by what is made of it.
pub(super) enum Waiter {
    Parsed(oneshot::Sender<Outcome>),
    Raw(oneshot::Sender<Result<RawAnswer, UpstreamError>>),
}

impl Waiter {
    pub(super) fn fail(self, error: UpstreamError) {
        match self {
            Self::Parsed(done) => drop(done.send(Err(error))),
            Self::Raw(done) => drop(done.send(Err(error))),
        }
    }

    pub(super) fn is_raw(&self) -> bool {
        matches!(self, Self::Raw(_))
    }
}

pub(super) struct Pending {
    pub(super) waiter: Waiter,
    pub(super) related: Option<mpsc::Sender<Incoming>>,
    /// The progress token of the caller's, if it gave one.
    pub(super) token: Option<Value>,
    /// When something was last heard that belongs to this call.
    pub(super) heard: Instant,
    /// Requests of the server's that belong to this call and wait for a person or a client.
    pub(super) asked: usize,
}

#[derive(Default)]
struct State {
    pending: HashMap<u64, Pending>,
    next_id: u64,
    /// Nothing is taken any more, and why.
    closed: Option<String>,
}

#[derive(Default)]
pub(super) struct Table {
    state: Mutex<State>,
    /// How many of them want raw answers: looked at for every message, so without the lock.
    raw: AtomicUsize,
}

impl Table {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Takes a call in and gives its id.
    pub(super) fn add(&self, pending: Pending) -> Result<u64, UpstreamError> {
        let mut state = self.lock();
        if let Some(why) = &state.closed {
            return Err(UpstreamError::lost(false, why.clone()));
        }
        if state.pending.len() >= MAX_PENDING {
            return Err(UpstreamError::Refused(format!("{MAX_PENDING} calls wait for this server already")));
        }
        state.next_id += 1;
        let id = state.next_id;
        self.raw.fetch_add(usize::from(pending.waiter.is_raw()), Ordering::Relaxed);
        state.pending.insert(id, pending);
        Ok(id)
    }

    pub(super) fn remove(&self, id: u64) -> Option<Pending> {
        let call = self.lock().pending.remove(&id)?;
        self.raw.fetch_sub(usize::from(call.waiter.is_raw()), Ordering::Relaxed);
        Some(call)
    }

    /// Whether any call wants a raw answer.
    pub(super) fn has_raw(&self) -> bool {
        self.raw.load(Ordering::Relaxed) > 0
    }

    /// Whether that call waits, and wants a raw answer.
    pub(super) fn is_raw(&self, id: u64) -> bool {
        self.has_raw() && self.lock().pending.get(&id).is_some_and(|call| call.waiter.is_raw())
    }

    /// The only call that waits, if there is exactly one.
    pub(super) fn only(&self) -> Option<u64> {
        let state = self.lock();
        let mut ids = state.pending.keys();
        ids.next().copied().filter(|_| ids.next().is_none())
    }

    /// The only call that wants to hear what belongs to it, if there is exactly one.
    pub(super) fn only_related(&self) -> Option<u64> {
        let state = self.lock();
        let mut ids = state.pending.iter().filter(|(_, call)| call.related.is_some()).map(|(id, _)| *id);
        ids.next().filter(|_| ids.next().is_none())
    }

    pub(super) fn contains(&self, id: u64) -> bool {
        self.lock().pending.contains_key(&id)
    }

    /// Something was heard of a call: its silence ends. Gives what `look` takes from it.
    pub(super) fn heard<T>(&self, id: u64, look: impl FnOnce(&mut Pending) -> T) -> Option<T> {
        self.lock().pending.get_mut(&id).map(|call| {
            call.heard = Instant::now();
            look(call)
        })
    }

    /// Since when the call is silent: `now` as long as it is the server that waits for us.
    pub(super) fn silent_since(&self, id: u64) -> Option<Instant> {
        let state = self.lock();
        let call = state.pending.get(&id)?;
        Some(if call.asked > 0 { Instant::now() } else { call.heard })
    }

    /// Ends every call and takes no more.
    pub(super) fn close(&self, why: &str) {
        let pending = {
            let mut state = self.lock();
            state.closed.get_or_insert_with(|| why.to_owned());
            self.raw.store(0, Ordering::Relaxed);
            std::mem::take(&mut state.pending)
        };
        for call in pending.into_values() {
            call.waiter.fail(UpstreamError::lost(true, why));
        }
    }
}
