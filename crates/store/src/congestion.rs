//! Prevents one principal from filling the writer's queue: a full queue drops events, so a flood would drop the events
//! of others.
//!
//! While the queue is more than half full, each principal may add only a small number of events.

use std::collections::HashMap;

use ringfence_core::sync::Mutex;
use ringfence_core::{AuditEvent, Principal};

/// While the queue is congested, each principal may use one sixteenth of it.
const SHARE: usize = 16;

/// The number of events that each principal has added since the queue became congested.
#[derive(Default)]
pub(crate) struct Congestion(Mutex<HashMap<Option<Box<str>>, usize>>);

impl Congestion {
    /// Returns true if the event may be added to a queue with this many free slots.
    pub(crate) fn admits(&self, event: &AuditEvent, free_slots: usize, queue_capacity: usize) -> bool {
        if free_slots > queue_capacity / 2 {
            return true;
        }
        let mut counts = self.0.lock();
        let principal = event.principal.as_ref().map(|principal| Principal::name(principal).into());
        let count = counts.entry(principal).or_default();
        *count += 1;
        *count <= (queue_capacity / SHARE).max(1)
    }

    /// Resets the counts after the writer has emptied the queue.
    pub(crate) fn end(&self) {
        self.0.lock().clear();
    }
}
