//! A session from its first sandbox to its end: known by its handle, and kept in a sandbox by its task.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ringfence_backend::Enforcement;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::admission::Place;
use super::adoption::Orphan;
use super::events;
use super::files::Files;
use super::limits::expires;
use super::log::Log;
use super::prepare::{Interpreter, Prepared};
use super::sessions::{Inner, Sessions};
use super::state::{Change, EndReason, State};
use super::{SessionInfo, SessionLimits, SessionStatus};
use crate::full_output::Outputs;
use crate::session_state::{SessionState, now};
use crate::session_task::{Call, SessionTask};
use ringfence_backend::Meter;
use ringfence_backend::Processes;
use ringfence_backend::protected_names;
use ringfence_backend::protected_names::ProtectedNames;
use ringfence_config::SessionSettings;
use ringfence_core::Flavor;
use ringfence_core::Template;
use ringfence_core::{Failure, Kind, Principal, SessionId};
use ringfence_store::{SessionRecord, StoreError};

/// Told to the next caller of a session whose sandbox was lost.
const REPLACED: &str = "the session's sandbox was lost, and a new one took its place: variables and files are gone";

/// Who has what, since when.
#[derive(Clone)]
pub(crate) struct SessionDescriptor {
    pub(crate) id: SessionId,
    pub(crate) principal: Principal,
    pub(crate) template: Template,
    pub(crate) flavor: Flavor,
    pub(crate) created: u64,
}

impl SessionDescriptor {
    /// Since it was made, through whatever sandboxes and servers.
    fn age(&self) -> Duration {
        Duration::from_secs(now().saturating_sub(self.created))
    }
}

/// What is kept of a live session outside of its own task.
#[derive(Clone)]
pub(crate) struct Handle {
    pub(crate) descriptor: Arc<SessionDescriptor>,
    enforcement: Enforcement,
    pub(crate) meter: Meter,
    pub(crate) shared: Arc<SessionState>,
    pub(crate) log: Arc<Log>,
    pub(crate) outputs: Arc<Outputs>,
    pub(crate) files: Files,
    /// Of the volumes of its sandbox.
    pub(crate) names: ProtectedNames,
    pub(crate) processes: Arc<Processes>,
    pub(crate) calls: mpsc::Sender<Call>,
    pub(crate) ended: CancellationToken,
}

impl Sessions {
    /// Begins the life of a session that has a sandbox and a place.
    pub(crate) fn settle(&self, descriptor: SessionDescriptor, prepared: Prepared, place: Place) -> Handle {
        let (calls, receiver) = mpsc::channel(self.0.settings.max_queued_calls.max(1));
        let guest = &prepared.guest;
        let handle = Handle {
            enforcement: guest.enforcement,
            meter: guest.meter(descriptor.flavor.limits.pids),
            descriptor: Arc::new(descriptor),
            shared: Arc::clone(&place.shared),
            log: Arc::default(),
            outputs: Arc::default(),
            files: Files::new(guest.control()),
            names: prepared.names.clone(),
            processes: guest.processes(),
            calls,
            ended: CancellationToken::new(),
        };
        handle.shared.touch();
        self.live().insert(handle.descriptor.id.clone(), handle.clone());
        let _ = handle.shared.change(Change::Started);
        // A server that ends may have told all others already.
        if self.0.tasks.is_closed() {
            handle.shared.end(EndReason::ShutDown);
        }
        let (inner, resident) = (Arc::clone(&self.0), handle.resident(prepared, receiver, None, &self.0.settings));
        self.0.tasks.spawn(inner.keep_house(handle.clone(), resident, place));
        handle
    }

    /// Takes over what a server that died has left behind.
    pub(crate) async fn adopt(&self) -> Result<(), StoreError> {
        let Some(keeping) = &self.0.keeping else { return Ok(()) };
        let orphans = keeping.adopt(&self.0.settings).await?;
        let found = orphans.len();
        for Orphan { descriptor, prepared } in orphans {
            match self.take_place(&descriptor.id, &descriptor.principal, &descriptor.flavor).await {
                Ok(place) => {
                    self.0.audit.record(events::adopted(&descriptor.principal, &descriptor.id));
                    self.settle(descriptor, prepared, place);
                }
                Err(failure) => {
                    tracing::warn!("a session that was left behind is ended: {failure}");
                    keeping.store.remove_session(&descriptor.id).await?;
                }
            }
        }
        if found > 0 {
            tracing::info!("took over {found} sessions of a server that died");
        }
        Ok(())
    }
}

impl Inner {
    /// Finds or makes a sandbox, and remembers it before anybody is told, so that none is lost that somebody knows of.
    pub(crate) async fn move_in(
        &self,
        descriptor: &SessionDescriptor,
        interpreter: Interpreter,
    ) -> Result<Prepared, Failure> {
        let SessionDescriptor { id, principal, template, flavor, created } = descriptor;
        // Its interpreter starts while the session is written down; nothing of the caller's runs in it before.
        let precedence = self.pool.yield_to();
        let prepared = match self.claim(template, flavor).await {
            Some(prepared) => self.made(template, flavor, prepared),
            None => self.make(template, flavor, interpreter).await?,
        };
        drop(precedence);
        if let Some(keeping) = &self.keeping {
            let record = SessionRecord {
                id: id.clone(),
                principal: principal.name().into(),
                template: template.name.to_string(),
                flavor: flavor.name.to_string(),
                created: *created,
                address: prepared.guest.address(),
            };
            // Sessions that nobody could find again after a crash are not begun.
            let forgotten = |error: StoreError| {
                let failure = Failure::new(Kind::Busy, format!("the session cannot be written down: {error}"));
                error.hints().into_iter().fold(failure, Failure::hint)
            };
            keeping.store.upsert_session(record).await.map_err(forgotten)?;
        }
        Ok(prepared)
    }

    /// Takes a pooled sandbox that still protects all protected names of its volumes; discards others.
    async fn claim(&self, template: &Template, flavor: &Flavor) -> Option<Prepared> {
        loop {
            let prepared = self.pool.claim(template, flavor)?;
            if prepared.names.is_current().await {
                return Some(prepared);
            }
        }
    }

    /// Another sandbox for a session that has lost its own, if one can be made.
    async fn replace(&self, handle: &Handle) -> Option<Prepared> {
        let made = self.move_in(&handle.descriptor, Interpreter::MaybeLater).await;
        made.inspect_err(|failure| tracing::warn!("a session ends, as its sandbox was lost and {failure}")).ok()
    }

    /// Sees a session to its end, through as many sandboxes as it loses.
    async fn keep_house(self: Arc<Self>, mut handle: Handle, mut resident: SessionTask, place: Place) {
        let (born, id) = (Instant::now(), handle.descriptor.id.clone());
        let mut witness = resident.guest.witness();
        while let Some(lost) = resident.live().await {
            // One that was stopped in the middle of a call has lost its sandbox too, and needs no other.
            let goes_on = lost.was_used && !matches!(handle.shared.state(), State::Stopping(_));
            let replaced = if goes_on { self.replace(&handle).await } else { None };
            let Some(prepared) = replaced else {
                handle.shared.end(EndReason::SandboxLost);
                break;
            };
            handle.enforcement = prepared.guest.enforcement;
            handle.meter = prepared.guest.meter(handle.descriptor.flavor.limits.pids);
            handle.files = Files::new(prepared.guest.control());
            handle.names = prepared.names.clone();
            handle.processes = prepared.guest.processes();
            let known = handle.clone();
            self.live.lock().insert(id.clone(), known);
            resident = handle.resident(prepared, lost.calls, Some(REPLACED.into()), &self.settings);
            witness = resident.guest.witness();
        }
        // What it had is free for others, and whoever has stopped it is told so, when nothing of it is left.
        witness.gone().await;
        for change in handle.names.changes().await.unwrap_or_default() {
            tracing::warn!("session {id}: {change}");
            self.audit.record(protected_names::event(&change).by(&handle.descriptor.principal, Some(&id)));
        }
        if let Ok(State::Ended(reason)) = place.shared.change(Change::Ended) {
            self.audit.record(events::ended(&handle.descriptor.principal, &id, reason, born.elapsed()));
        }
        if let Some(keeping) = &self.keeping {
            // One that stays remembered is forgotten by the next server.
            let _ = keeping.store.remove_session(&id).await;
        }
        self.live.lock().remove(&id);
        drop(place);
        handle.ended.cancel();
    }
}

impl Handle {
    fn resident(
        &self,
        prepared: Prepared,
        calls: mpsc::Receiver<Call>,
        owed_notice: Option<String>,
        settings: &SessionSettings,
    ) -> SessionTask {
        SessionTask {
            memory_kills: prepared.guest.memory_kills(),
            guest: prepared.guest,
            kernel: prepared.kernel,
            starting: prepared.starting,
            language: self.descriptor.template.language,
            memory_limit: self.descriptor.flavor.limits.memory_bytes,
            shared: Arc::clone(&self.shared),
            calls,
            idle_timeout: settings.idle_timeout,
            most_age: settings.max_age.map(|most| most.saturating_sub(self.descriptor.age())),
            owed_notice,
            was_used: false,
        }
    }

    /// Whether this caller may know of it. One that is ending is gone for everybody.
    pub(crate) fn is_there_for(&self, principal: &Principal) -> bool {
        principal.can_see(&self.descriptor.principal) && !self.shared.is_ending()
    }

    pub(crate) fn describe(&self, settings: &SessionSettings) -> SessionInfo {
        let by = |cgroup: bool, otherwise| if cgroup { "cgroup" } else { otherwise };
        let SessionDescriptor { id, principal, template, flavor, created } = &*self.descriptor;
        let last_used = self.shared.last_used();
        let is_busy = self.shared.state() == State::Busy;
        SessionInfo {
            session_id: id.clone(),
            principal: principal.name().into(),
            template: template.name.to_string(),
            flavor: flavor.name.to_string(),
            status: if is_busy { SessionStatus::Busy } else { SessionStatus::Idle },
            created: *created,
            last_used,
            expires: expires(*created, last_used, settings.idle_timeout, settings.max_age),
            memory_bytes: self.meter.memory_bytes(),
            memory_limit_bytes: flavor.limits.memory_bytes,
            limits: SessionLimits {
                cpus: flavor.limits.cpus,
                processes: flavor.limits.pids,
                open_files: flavor.limits.open_files,
                workspace_bytes: flavor.workspace.bytes,
                workspace_inodes: flavor.workspace.inodes,
            },
            usage: None,
            backend: "native",
            enforced_by: [
                ("memory", by(self.enforcement.memory_by_cgroup, "rlimit and watchdog")),
                ("processes", by(self.enforcement.pids_by_cgroup, "rlimit")),
                ("cpu", by(self.enforcement.cpu_by_cgroup, "affinity")),
                ("open_files", "rlimit"),
                ("workspace", "tmpfs"),
            ]
            .into(),
        }
    }
}
