//! The handle by which every part of the program records audit events.
//!
//! Recording never waits and never fails a request.

use std::sync::Arc;

use ringfence_core::AuditEvent;
use ringfence_core::sync::Mutex;
use serde::Serialize;
use serde_json::{Value, json};

use crate::store::Store;

/// Records audit events. Clones share one destination.
#[derive(Clone, Default)]
pub struct Audit {
    destination: Destination,
    /// Added to every event.
    run: Option<Arc<Value>>,
}

#[derive(Clone, Default)]
enum Destination {
    #[default]
    None,
    Memory(Arc<Mutex<Vec<AuditEvent>>>),
    Store(Store),
}

impl Audit {
    /// Discards all events.
    pub fn disabled() -> Self {
        Self::default()
    }

    /// Retains all events in memory, for tests.
    pub fn in_memory() -> Self {
        Self { destination: Destination::Memory(Arc::default()), run: None }
    }

    pub fn in_store(store: Store) -> Self {
        Self { destination: Destination::Store(store), run: None }
    }

    /// Adds the identity of a run to every event.
    #[must_use]
    pub fn with_run(self, run: Option<&impl Serialize>) -> Self {
        Self { run: run.map(|run| Arc::new(json!(run))), ..self }
    }

    pub fn record(&self, mut event: AuditEvent) {
        if let Some(run) = &self.run {
            event.detail.add("run", Value::clone(run));
        }
        event.log();
        match &self.destination {
            Destination::None => {}
            Destination::Memory(events) => events.lock().push(event),
            Destination::Store(store) => store.record(event),
        }
    }

    /// Returns the events in memory.
    pub fn collected(&self) -> Vec<AuditEvent> {
        match &self.destination {
            Destination::Memory(events) => events.lock().clone(),
            Destination::None | Destination::Store(_) => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use ringfence_core::AuditKind;

    use super::*;

    #[test]
    fn every_event_of_a_run_names_it() {
        let run = json!({"session_id": "s-1", "run_id": "r-1"});
        let audit = Audit::in_memory().with_run(Some(&run));
        audit.record(AuditEvent::new(AuditKind::CallStarted, "ok"));
        assert_eq!(audit.collected()[0].detail["run"], json!({"session_id": "s-1", "run_id": "r-1"}));
    }
}
