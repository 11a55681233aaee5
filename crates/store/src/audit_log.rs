//! The handle by which every part of the program records audit events.
//!
//! Recording never waits and never fails a request.

use std::sync::{Arc, Mutex, PoisonError};

use ringfence_core::AuditEvent;
use serde::Serialize;
use serde_json::{Value, json};

use crate::Store;

/// Where events go. Cheap to clone; all clones are one.
#[derive(Clone, Default)]
pub struct Audit {
    sink: Sink,
    /// Stands in every event.
    run: Option<Arc<Value>>,
}

#[derive(Clone, Default)]
enum Sink {
    #[default]
    Nowhere,
    Memory(Arc<Mutex<Vec<AuditEvent>>>),
    Store(Store),
}

impl Audit {
    pub fn nowhere() -> Self {
        Self::to(Sink::Nowhere)
    }

    /// Keeps all events, for tests.
    pub fn in_memory() -> Self {
        Self::to(Sink::Memory(Arc::default()))
    }

    pub fn in_store(store: Store) -> Self {
        Self::to(Sink::Store(store))
    }

    fn to(sink: Sink) -> Self {
        Self { sink, run: None }
    }

    /// The same, of all that happens in one run.
    #[must_use]
    pub fn of_run(self, run: Option<&impl Serialize>) -> Self {
        Self { run: run.map(|run| Arc::new(json!(run))), ..self }
    }

    pub fn record(&self, mut event: AuditEvent) {
        if let Some(run) = &self.run {
            event.detail.add("run", Value::clone(run));
        }
        event.log();
        match &self.sink {
            Sink::Nowhere => {}
            Sink::Memory(events) => events.lock().unwrap_or_else(PoisonError::into_inner).push(event),
            Sink::Store(store) => store.record(event),
        }
    }

    /// What was kept in memory.
    pub fn collected(&self) -> Vec<AuditEvent> {
        match &self.sink {
            Sink::Memory(events) => events.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            Sink::Nowhere | Sink::Store(_) => Vec::new(),
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
        let audit = Audit::in_memory().of_run(Some(&run));
        audit.record(AuditEvent::new(AuditKind::CallStarted, "ok"));
        assert_eq!(audit.collected()[0].detail["run"], json!({"session_id": "s-1", "run_id": "r-1"}));
    }
}
