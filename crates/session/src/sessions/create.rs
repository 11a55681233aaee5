//! Creates sessions: admission, instance, record in the store.

use std::sync::Arc;
use std::time::Instant;

use ringfence_core::sync::Mutex;
use ringfence_core::{Failure, Flavor, Kind, Principal, SessionId, Template};
use ringfence_egress::Rule;
use ringfence_store::{SessionRecord, StoreError};
use tokio_util::sync::CancellationToken;

use super::request_checks::{self, SessionRequest};
use super::template_packages::with_packages;
use super::{Inner, Sessions, events};
use crate::admission::Slot;
use crate::instances::{InterpreterNeed, PreparedInstance};
use crate::session::{InstanceHandle, SessionDescriptor, SessionHandle, call_queues};
use crate::state::{Change, EndReason, UseGuard, now_s};

/// The source of the instance of a session.
#[derive(Clone, Copy)]
pub(super) enum InstanceSource {
    /// The pool, or a new instance if the pool has none.
    PoolFirst,
    NewOnly,
}

impl Sessions {
    pub(super) async fn create(
        &self,
        principal: &Principal,
        request: &SessionRequest,
        need: InterpreterNeed,
    ) -> Result<(SessionId, SessionHandle, UseGuard), Failure> {
        let (start, settings) = (Instant::now(), &self.0.settings);
        let (template, flavor) = request_checks::find_options(settings, request)?;
        self.health().map_err(|reason| Failure::new(Kind::Busy, reason))?;
        // Before the session takes a slot: this may take until the deadline.
        let timeout = request_checks::check_timeout(settings, request.timeout)?;
        let template = &with_packages(template, settings, timeout).await?;
        let id = SessionId::random().map_err(|error| Failure::new(Kind::Internal, error.to_string()))?;
        let slot = self.acquire_slot(&id, principal, flavor).await?;
        // From the start, so that the session is not evicted before its first call.
        let guard = slot.state.begin_use().ok_or_else(|| Failure::session_not_found(&id))?;
        let descriptor = SessionDescriptor {
            id: id.clone(),
            principal: principal.clone(),
            template: template.clone(),
            flavor: flavor.clone(),
            created: now_s(),
        };
        let prepared = self.0.prepare_instance(&descriptor, need, InstanceSource::PoolFirst).await?;
        let handle = self.start(descriptor, prepared, slot, Vec::new());
        self.0.audit.record(events::created(principal, &id, template, flavor, start.elapsed()));
        Ok((id, handle, guard))
    }

    /// Acquires a slot, and waits for the end of the sessions that are evicted for it.
    pub(super) async fn acquire_slot(
        &self,
        id: &SessionId,
        principal: &Principal,
        flavor: &Flavor,
    ) -> Result<Slot, Failure> {
        let record = |id: &SessionId, owner: &Principal| self.0.audit.record(events::evicted(owner, id, principal));
        let (slot, evicted) = self.0.slots.acquire(id, principal, flavor.limits.memory_bytes, record)?;
        for id in evicted {
            let ended = self.live().get(&id).map(|handle| handle.ended.clone());
            if let Some(ended) = ended {
                ended.cancelled().await;
            }
        }
        Ok(slot)
    }

    /// Starts the task of a session that has an instance and a slot.
    pub(super) fn start(
        &self,
        descriptor: SessionDescriptor,
        mut prepared: PreparedInstance,
        slot: Slot,
        added_rules: Vec<Rule>,
    ) -> SessionHandle {
        prepared.network.attach(&self.0.audit, &descriptor.principal, &descriptor.id);
        let (calls, queues) = call_queues(self.0.settings.max_queued_calls.max(1));
        let handle = SessionHandle {
            instance: InstanceHandle::new(self.0.backend.name(), &prepared, &descriptor.flavor),
            descriptor: Arc::new(descriptor),
            state: Arc::clone(&slot.state),
            log: Arc::default(),
            outputs: Arc::default(),
            added_rules: Arc::new(Mutex::new(added_rules)),
            calls,
            ended: CancellationToken::new(),
        };
        handle.state.touch();
        self.live().insert(handle.descriptor.id.clone(), handle.clone());
        let _ = handle.state.change(Change::Started);
        // A shutdown may have ended all other sessions already.
        if self.0.tasks.is_closed() {
            handle.state.end(EndReason::ShutDown);
        }
        let (inner, task) = (Arc::clone(&self.0), handle.task(prepared, queues, None, &self.0.settings));
        self.0.tasks.spawn(inner.run_session(handle.clone(), task, slot));
        handle
    }
}

impl Inner {
    /// Claims or creates an instance, and records it in the store before the caller receives the session's id, so
    /// that a crash loses no session that a client knows.
    pub(super) async fn prepare_instance(
        &self,
        descriptor: &SessionDescriptor,
        need: InterpreterNeed,
        source: InstanceSource,
    ) -> Result<PreparedInstance, Failure> {
        let SessionDescriptor { id, principal, template, flavor, created } = descriptor;
        // The interpreter starts while the record is written. No code of the caller runs in it before.
        let foreground = self.pool.begin_foreground_launch();
        let pooled = match source {
            InstanceSource::PoolFirst => self.claim(template, flavor).await,
            InstanceSource::NewOnly => None,
        };
        let prepared = match pooled {
            Some(prepared) => self.record_success(template, flavor, prepared),
            None => self.create_instance(template, flavor, need).await?,
        };
        drop(foreground);
        if let Some(store) = &self.store {
            let record = SessionRecord {
                id: id.clone(),
                principal: principal.name().into(),
                template: template.name.to_string(),
                flavor: flavor.name.to_string(),
                created: *created,
                address: prepared.instance.address(),
            };
            // A session that could not be found again after a crash is not started.
            let failed = |error: StoreError| {
                let failure = Failure::new(Kind::Busy, format!("the session cannot be stored: {error}"));
                error.hints().into_iter().fold(failure, Failure::hint)
            };
            store.upsert_session(record).await.map_err(failed)?;
        }
        Ok(prepared)
    }

    /// Claims a pooled instance that protects all protected names of its volumes. Discards others.
    async fn claim(&self, template: &Template, flavor: &Flavor) -> Option<PreparedInstance> {
        loop {
            let prepared = self.pool.claim(template, flavor)?;
            if prepared.names.is_current().await {
                return Some(prepared);
            }
        }
    }
}
