//! The desired and the actual state of one server. The fleet writes the former, the supervisor the latter.

use ringfence_core::sync::Mutex;
use std::sync::Arc;

use ringfence_entries::{ServerEntry, StartPolicy};
use ringfence_servers::Phase;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::circuit::{CallEnd, Circuit};
use super::failure::{LinkMissing, ServerFailure};
use super::state_machine::{Idle, State, Status};

pub(super) struct Slot<L> {
    /// Written by the fleet, under the lock of the roster.
    pub(super) desired: watch::Sender<Desired>,
    /// Written by the supervisor.
    pub(super) view: watch::Sender<View<L>>,
    /// Notified when a caller needs a server that is idle, or whose attempts have failed.
    pub(super) start_requested: Notify,
}

#[derive(Clone)]
pub(super) struct Desired {
    pub(super) entry: Arc<ServerEntry>,
    pub(super) goal: Goal,
    /// The number of requested restarts.
    pub(super) restarts: u64,
    /// The number of changes, which shows whether the supervisor has applied the last one.
    pub(super) version: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Goal {
    Run,
    /// Run as soon as a caller needs the server.
    RunOnDemand,
    Disable,
    /// Stop the server, and remove it from the roster.
    Remove,
}

pub(super) struct View<L> {
    pub(super) state: State,
    /// The version of the desired state that was applied last.
    pub(super) applied_version: u64,
    pub(super) connection: Option<Arc<Connection<L>>>,
    pub(super) failure: Option<Arc<ServerFailure>>,
    /// The number of connections after the first.
    pub(super) restarts: u32,
    /// The last lines of stderr before the connection was lost.
    pub(super) stderr: Arc<[String]>,
}

pub(super) struct Connection<L> {
    pub(super) link: Arc<L>,
    pub(super) connected_at: Instant,
    circuit: Mutex<Circuit>,
}

impl<L> Slot<L> {
    pub(super) fn new(entry: ServerEntry) -> Self {
        let goal = Goal::from_entry(&entry);
        let state = match goal {
            Goal::Run => State::Queued(1),
            Goal::RunOnDemand => State::Idle(Idle::Unused),
            Goal::Disable | Goal::Remove => State::Idle(Idle::Disabled),
        };
        let view =
            View { state, applied_version: 0, connection: None, failure: None, restarts: 0, stderr: Arc::default() };
        let desired = Desired { entry: Arc::new(entry), goal, restarts: 0, version: 1 };
        Self { desired: watch::Sender::new(desired), view: watch::Sender::new(view), start_requested: Notify::new() }
    }

    pub(super) fn entry(&self) -> Arc<ServerEntry> {
        self.desired.borrow().entry.clone()
    }

    /// Sets the desired entry. Returns whether it has changed.
    pub(super) fn set_entry(&self, entry: ServerEntry) -> bool {
        let goal = Goal::from_entry(&entry);
        self.desired.send_if_modified(|desired| {
            let is_change = desired.goal != goal || *desired.entry != entry;
            if is_change {
                desired.goal = goal;
                desired.entry = Arc::new(entry);
                desired.version += 1;
            }
            is_change
        })
    }

    /// Requests the removal of the server. Returns false if that was requested before.
    pub(super) fn remove(&self) -> bool {
        self.desired.send_if_modified(|desired| {
            let is_change = desired.goal != Goal::Remove;
            if is_change {
                desired.goal = Goal::Remove;
                desired.version += 1;
            }
            is_change
        })
    }

    /// Requests a restart. Returns the version of the request, or None if the server must not run.
    pub(super) fn restart(&self) -> Option<u64> {
        let mut version = None;
        self.desired.send_if_modified(|desired| {
            if desired.goal.allows_start() {
                desired.restarts += 1;
                desired.version += 1;
                version = Some(desired.version);
            }
            version.is_some()
        });
        version
    }

    /// Whether the first attempt with the current entry has a result.
    pub(super) fn has_first_result(&self) -> bool {
        let view = self.view.borrow();
        view.applied_version == self.desired.borrow().version && !view.state.is_in_first_attempt()
    }
}

impl Goal {
    fn from_entry(entry: &ServerEntry) -> Self {
        match entry.start {
            _ if !entry.enable => Self::Disable,
            StartPolicy::AtOnce => Self::Run,
            StartPolicy::OnDemand => Self::RunOnDemand,
        }
    }

    pub(super) fn allows_start(self) -> bool {
        matches!(self, Self::Run | Self::RunOnDemand)
    }
}

impl Desired {
    /// Whether a server that was started for `self` can continue with `other`.
    pub(super) fn has_same_start(&self, other: &Self) -> bool {
        let (this, that) = (&self.entry, &other.entry);
        (this.name == that.name && this.uuid == that.uuid && this.transport == that.transport)
            && self.restarts == other.restarts
    }
}

impl<L> View<L> {
    pub(super) fn link_missing(&self, server: &str) -> LinkMissing {
        let status = self.state.status();
        if let Some(failure) = &self.failure {
            return LinkMissing::from_failure(server, status, (**failure).clone());
        }
        let message = match status {
            Status::Connecting => "not ready in time",
            Status::Connected | Status::Error => "the connection was just lost",
            Status::Idle => "it starts when it is first used",
            Status::Disabled => "its entry is disabled",
            Status::Stopped => "removed, or ringfence is shutting down",
        };
        LinkMissing { server: server.into(), status: Some(status), phase: None, message: message.into(), hints: vec![] }
    }
}

impl<L> Clone for View<L> {
    fn clone(&self) -> Self {
        Self {
            state: self.state,
            applied_version: self.applied_version,
            connection: self.connection.clone(),
            failure: self.failure.clone(),
            restarts: self.restarts,
            stderr: self.stderr.clone(),
        }
    }
}

impl<L> Connection<L> {
    pub(super) fn new(link: L) -> Self {
        Self { link: Arc::new(link), connected_at: Instant::now(), circuit: Mutex::default() }
    }

    /// Returns the link for one call, unless the circuit is open.
    pub(super) fn admit(&self) -> Result<Arc<L>, ServerFailure> {
        let mut circuit = self.circuit.lock();
        match circuit.admit(Instant::now()) {
            Ok(()) => Ok(self.link.clone()),
            Err(_) => Err(circuit_failure(&circuit)),
        }
    }

    /// The failure with which calls are refused, if the circuit is open.
    pub(super) fn open_circuit(&self) -> Option<ServerFailure> {
        let circuit = self.circuit.lock();
        circuit.remaining_open_time(Instant::now()).map(|_| circuit_failure(&circuit))
    }

    pub(super) fn report(&self, end: CallEnd) {
        self.circuit.lock().report(end, Instant::now());
    }
}

fn circuit_failure(circuit: &Circuit) -> ServerFailure {
    let wait = circuit.remaining_open_time(Instant::now()).unwrap_or_default().as_secs_f64().ceil();
    let message = format!("the last {} calls failed; the next call is allowed in {wait} s", circuit.failures());
    ServerFailure::new(Phase::ToolCall, &message, &[])
}
