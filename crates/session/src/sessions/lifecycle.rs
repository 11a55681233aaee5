//! Runs a session to its end, through as many instances as it loses.

use std::sync::Arc;
use std::time::Instant;

use ringfence_backend::protected_names;

use super::create::InstanceSource;
use super::{Inner, events};
use crate::admission::Slot;
use crate::instances::{InterpreterNeed, PreparedInstance};
use crate::session::{InstanceHandle, SessionHandle, SessionTask};
use crate::state::{Change, EndReason, State};

/// The notice for the next caller of a session whose instance was lost.
const INSTANCE_REPLACED: &str =
    "the session's sandbox was lost and replaced by a new one: its variables and files are lost";

impl Inner {
    pub(super) async fn run_session(self: Arc<Self>, mut handle: SessionHandle, mut task: SessionTask, slot: Slot) {
        let (start, id) = (Instant::now(), handle.descriptor.id.clone());
        let mut end_watch = task.instance.end_watch();
        let mut may_be_from_pool = false;
        while let Some(lost) = task.run().await {
            // Instances of the pool may be lost for the same reason as the one that they replace, such as the end of
            // their launcher, without having noticed it yet.
            let source = if lost.was_used { InstanceSource::PoolFirst } else { InstanceSource::NewOnly };
            // A session that is stopped during a call loses its instance too, and needs no other.
            let continues =
                (lost.was_used || may_be_from_pool) && !matches!(handle.state.current(), State::Stopping(_));
            may_be_from_pool = lost.was_used;
            let replacement = if continues { self.replace_instance(&handle, source).await } else { None };
            let Some(mut prepared) = replacement else {
                handle.state.end(EndReason::SandboxLost);
                break;
            };
            prepared.network.attach(&self.audit, &handle.descriptor.principal, &id);
            handle.instance = InstanceHandle::new(self.backend.name(), &prepared, &handle.descriptor.flavor);
            self.live.lock().insert(id.clone(), handle.clone());
            // After the handle was published: a rule that is added concurrently is applied by this call or by its own.
            if let Err(failure) = handle.apply_added_rules().await {
                tracing::warn!("session {id}: {failure}");
            }
            task = handle.task(prepared, lost.queues, Some(INSTANCE_REPLACED.into()), &self.settings);
            end_watch = task.instance.end_watch();
        }
        if handle.state.is_left() {
            // The record remains, so that the next server adopts the instance.
            self.live.lock().remove(&id);
            handle.ended.cancel();
            return;
        }
        // The slot is freed, and callers of `stop` continue, when no process of the session is left.
        end_watch.ended().await;
        for change in handle.instance.names.changes().await.unwrap_or_default() {
            tracing::warn!("session {id}: {change}");
            self.audit.record(protected_names::event(&change).by(&handle.descriptor.principal, Some(&id)));
        }
        if let Ok(State::Ended(reason)) = slot.state.change(Change::Ended) {
            self.audit.record(events::ended(&handle.descriptor.principal, &id, reason, start.elapsed()));
        }
        if let Some(store) = &self.store {
            // If this fails, the next server removes the record.
            let _ = store.remove_session(&id).await;
        }
        self.live.lock().remove(&id);
        drop(slot);
        handle.ended.cancel();
    }

    /// Provides another instance for a session that has lost its own.
    async fn replace_instance(&self, handle: &SessionHandle, source: InstanceSource) -> Option<PreparedInstance> {
        let created = self.prepare_instance(&handle.descriptor, InterpreterNeed::MaybeLater, source).await;
        let id = &handle.descriptor.id;
        let log = |failure: &_| tracing::warn!("session {id} ends: its sandbox was lost, and {failure}");
        created.inspect_err(log).ok()
    }
}
