//! Prevents one principal from filling the writer's queue: a full queue drops events, so a flood would drop the events
//! of others.
//!
//! While the queue is more than half full, each principal may add only a small number of events.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use tokio::sync::mpsc::Sender;

use super::writer::Job;
use ringfence_core::AuditEvent;
use ringfence_core::Principal;

/// The part of the queue that one principal may take while it is congested.
const SHARE: usize = 16;

/// The number of events that each principal has added since the queue became congested.
#[derive(Default)]
pub(super) struct Congestion(Mutex<HashMap<Option<Box<str>>, usize>>);

impl Congestion {
    /// Whether this event may be queued.
    pub(super) fn admits(&self, event: &AuditEvent, queue: &Sender<Job>) -> bool {
        let (free, size) = (queue.capacity(), queue.max_capacity());
        if free > size / 2 {
            return true;
        }
        let mut added = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let principal = event.principal.as_ref().map(|principal| Principal::name(principal).into());
        let added = added.entry(principal).or_default();
        *added += 1;
        *added <= (size / SHARE).max(1)
    }

    /// The writer has emptied the queue.
    pub(super) fn end(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}
