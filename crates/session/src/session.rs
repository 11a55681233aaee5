//! One live session: its description, the handle that callers use, the task that owns its instance.

mod commands;
mod log;
mod queues;
mod reports;
mod task;

use std::sync::Arc;
use std::time::Duration;

use ringfence_backend::protected_names::ProtectedNames;
use ringfence_backend::{EgressPorts, Enforcement, Instance, InstanceFiles, Meter, Processes};
use ringfence_config::SessionSettings;
use ringfence_core::sync::Mutex;
use ringfence_core::{Flavor, Principal, SessionId, Template};
use ringfence_egress::{Egress, Rule};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::admission::expires;
use crate::api::{SessionInfo, SessionLimits, SessionStatus};
use crate::instances::PreparedInstance;
use crate::outputs::RetainedOutputs;
use crate::state::{SessionState, State, now_s};

use commands::RunningCommands;
pub use log::LogEntry;
pub(crate) use log::{CallLog, CallRecord};
pub(crate) use queues::{Call, CallQueues, CallSender, Work, call_queues};
use reports::Reports;
pub(crate) use task::SessionTask;

/// Maximum number of concurrent file transfers of a session. Each has its bytes in memory.
pub(crate) const MAX_FILE_TRANSFERS: usize = 4;

/// The properties of a session that never change.
#[derive(Clone)]
pub(crate) struct SessionDescriptor {
    pub(crate) id: SessionId,
    pub(crate) principal: Principal,
    pub(crate) template: Template,
    pub(crate) flavor: Flavor,
    /// Seconds since the epoch.
    pub(crate) created: u64,
}

impl SessionDescriptor {
    /// The age of the session, which may have had several instances and servers.
    fn age(&self) -> Duration {
        Duration::from_secs(now_s().saturating_sub(self.created))
    }
}

/// A live session, as callers use it. Cheap to clone.
#[derive(Clone)]
pub(crate) struct SessionHandle {
    pub(crate) descriptor: Arc<SessionDescriptor>,
    pub(crate) state: Arc<SessionState>,
    pub(crate) log: Arc<CallLog>,
    pub(crate) outputs: Arc<RetainedOutputs>,
    pub(crate) instance: InstanceHandle,
    /// The rules that were added while it ran. They apply to its next instances too.
    pub(crate) added_rules: Arc<Mutex<Vec<Rule>>>,
    pub(crate) calls: CallSender,
    /// Cancelled when nothing of the session is left.
    pub(crate) ended: CancellationToken,
}

/// The parts of a session's current instance that callers use. Replaced when the instance is lost.
#[derive(Clone)]
pub(crate) struct InstanceHandle {
    backend: &'static str,
    enforcement: Enforcement,
    pub(crate) meter: Meter,
    pub(crate) files: InstanceFiles,
    /// Limits concurrent file transfers.
    pub(crate) file_permits: Arc<Semaphore>,
    /// The protected names in its volumes.
    pub(crate) names: ProtectedNames,
    pub(crate) processes: Arc<Processes>,
    /// `None` if it has no network.
    pub(crate) egress: Option<Egress>,
    pub(crate) egress_ports: EgressPorts,
}

impl InstanceHandle {
    pub(crate) fn new(backend: &'static str, prepared: &PreparedInstance, flavor: &Flavor) -> Self {
        let instance: &Instance = &prepared.instance;
        Self {
            backend,
            enforcement: instance.enforcement(),
            meter: instance.meter(flavor.limits.pids),
            files: instance.files(),
            file_permits: Arc::new(Semaphore::new(MAX_FILE_TRANSFERS)),
            names: prepared.names.clone(),
            processes: instance.processes(),
            egress: prepared.network.egress(),
            egress_ports: instance.egress_ports(),
        }
    }
}

impl SessionHandle {
    /// Creates the task that owns an instance of this session. `notice` is for the next caller.
    pub(crate) fn task(
        &self,
        prepared: PreparedInstance,
        queues: CallQueues,
        notice: Option<String>,
        settings: &SessionSettings,
    ) -> SessionTask {
        let reports = Reports::new(
            Arc::clone(&self.state),
            prepared.network,
            self.descriptor.flavor.limits.memory_bytes,
            prepared.instance.memory_kills(),
            notice,
        );
        SessionTask {
            instance: Arc::new(prepared.instance),
            kernel: prepared.kernel,
            starting: prepared.starting,
            language: self.descriptor.template.language,
            state: Arc::clone(&self.state),
            queues,
            commands: RunningCommands::default(),
            reports,
            idle_timeout: settings.idle_timeout,
            age_end: settings.max_age.map(|age| Instant::now() + age.saturating_sub(self.descriptor.age())),
            was_used: false,
        }
    }

    /// Whether the session exists for this principal. A session that is ending exists for none.
    pub(crate) fn is_visible_to(&self, principal: &Principal) -> bool {
        principal.can_see(&self.descriptor.principal) && !self.state.is_ending()
    }

    pub(crate) fn describe(&self, settings: &SessionSettings) -> SessionInfo {
        let SessionDescriptor { id, principal, template, flavor, created } = &*self.descriptor;
        let InstanceHandle { backend, enforcement, meter, .. } = &self.instance;
        let last_used = self.state.last_used_s();
        let is_busy = matches!(self.state.current(), State::Busy(_));
        SessionInfo {
            session_id: id.clone(),
            principal: principal.name().into(),
            template: template.name.to_string(),
            flavor: flavor.name.to_string(),
            status: if is_busy { SessionStatus::Busy } else { SessionStatus::Idle },
            created: *created,
            last_used,
            expires: expires(*created, last_used, settings.idle_timeout, settings.max_age),
            memory_bytes: meter.memory_bytes(),
            memory_limit_bytes: flavor.limits.memory_bytes,
            limits: SessionLimits {
                cpus: flavor.limits.cpus,
                processes: flavor.limits.pids,
                open_files: flavor.limits.open_files,
                workspace_bytes: flavor.workspace.bytes,
                workspace_inodes: flavor.workspace.inodes,
            },
            usage: None,
            backend,
            enforced_by: [
                ("memory", enforcement.memory),
                ("processes", enforcement.processes),
                ("cpu", enforcement.cpu),
                ("open_files", enforcement.open_files),
                ("workspace", enforcement.workspace),
            ]
            .into(),
        }
    }
}
