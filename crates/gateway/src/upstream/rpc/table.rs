//! The calls that wait for an answer, by our own ids.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::upstream::Incoming;
use crate::upstream::error::UpstreamError;

/// More calls at once than this are refused.
const MAX_PENDING: usize = 4096;

/// What a call ends with: the raw result and the size of its message.
pub(super) type Outcome = Result<(Value, usize), UpstreamError>;

pub(super) struct Pending {
    pub(super) done: oneshot::Sender<Outcome>,
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
pub(super) struct Table(Mutex<State>);

impl Table {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
        state.pending.insert(id, pending);
        Ok(id)
    }

    pub(super) fn remove(&self, id: u64) -> Option<Pending> {
        self.lock().pending.remove(&id)
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
            std::mem::take(&mut state.pending)
        };
        for call in pending.into_values() {
            let _ = call.done.send(Err(UpstreamError::lost(true, why)));
        }
    }
}
