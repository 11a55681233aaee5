//! What is wanted of one server, and what is known of it: all that the fleet and its supervisor share.

use ringfence_core::sync::Mutex;
use std::sync::Arc;

use ringfence_entries::ServerEntry;
use ringfence_servers::Phase;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::circuit::{CallEnd, Circuit};
use super::failure::{LinkMissing, ServerFailure};
use super::state_machine::{Rest, State, Status};

pub(super) struct Slot<L> {
    /// Written by the fleet, under the lock of its roster.
    pub(super) desired: watch::Sender<Desired>,
    /// Written by the supervisor.
    pub(super) view: watch::Sender<View<L>>,
    /// Somebody waits for a server that was given up.
    pub(super) wanted: Notify,
}

#[derive(Clone)]
pub(super) struct Desired {
    pub(super) entry: Arc<ServerEntry>,
    pub(super) wish: Wish,
    /// How often it was asked to start anew.
    pub(super) restarts: u64,
    /// Counts the changes, so that it can be seen which the supervisor has heeded.
    pub(super) version: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wish {
    Run,
    Disable,
    /// Stop, and be forgotten.
    Remove,
}

pub(super) struct View<L> {
    pub(super) state: State,
    /// The version of what is desired that this takes into account.
    pub(super) heeded: u64,
    pub(super) connection: Option<Arc<Connection<L>>>,
    pub(super) failure: Option<Arc<ServerFailure>>,
    /// How often it was connected again.
    pub(super) restarts: u32,
    /// What it last wrote before it was lost.
    pub(super) stderr: Arc<[String]>,
}

pub(super) struct Connection<L> {
    pub(super) link: Arc<L>,
    pub(super) since: Instant,
    circuit: Mutex<Circuit>,
}

impl<L> Slot<L> {
    pub(super) fn new(entry: ServerEntry) -> Self {
        let wish = Wish::of(&entry);
        let state = if wish == Wish::Run { State::Queued(1) } else { State::Resting(Rest::Disabled) };
        let view = View { state, heeded: 0, connection: None, failure: None, restarts: 0, stderr: Arc::default() };
        let desired = Desired { entry: Arc::new(entry), wish, restarts: 0, version: 1 };
        Self { desired: watch::Sender::new(desired), view: watch::Sender::new(view), wanted: Notify::new() }
    }

    pub(super) fn entry(&self) -> Arc<ServerEntry> {
        self.desired.borrow().entry.clone()
    }

    /// Changes what is desired, if it is a change.
    pub(super) fn desire(&self, entry: ServerEntry) -> bool {
        let wish = Wish::of(&entry);
        self.desired.send_if_modified(|desired| {
            let is_change = desired.wish != wish || *desired.entry != entry;
            if is_change {
                desired.wish = wish;
                desired.entry = Arc::new(entry);
                desired.version += 1;
            }
            is_change
        })
    }

    pub(super) fn remove(&self) -> bool {
        self.desired.send_if_modified(|desired| {
            let is_change = desired.wish != Wish::Remove;
            if is_change {
                desired.wish = Wish::Remove;
                desired.version += 1;
            }
            is_change
        })
    }

    /// The version that asks for the restart, if the server is to run at all.
    pub(super) fn restart(&self) -> Option<u64> {
        let mut version = None;
        self.desired.send_if_modified(|desired| {
            if desired.wish == Wish::Run {
                desired.restarts += 1;
                desired.version += 1;
                version = Some(desired.version);
            }
            version.is_some()
        });
        version
    }

    /// Whether it is known how the server fares with what is desired now.
    pub(super) fn is_settled(&self) -> bool {
        let view = self.view.borrow();
        view.heeded == self.desired.borrow().version && !view.state.is_in_first_attempt()
    }
}

impl Wish {
    fn of(entry: &ServerEntry) -> Self {
        if entry.enable { Self::Run } else { Self::Disable }
    }
}

impl Desired {
    /// Whether a server that runs by the one may go on by the other.
    pub(super) fn is_same_start(&self, other: &Self) -> bool {
        let (this, that) = (&self.entry, &other.entry);
        (this.name == that.name && this.uuid == that.uuid && this.transport == that.transport)
            && self.restarts == other.restarts
    }
}

impl<L> View<L> {
    pub(super) fn why_missing(&self, server: &str) -> LinkMissing {
        let status = self.state.status();
        if let Some(failure) = &self.failure {
            return LinkMissing::because(server, status, (**failure).clone());
        }
        let message = match status {
            Status::Connecting => "it did not get ready in time",
            Status::Connected | Status::Error => "it has just lost its connection",
            Status::Disabled => "its entry is disabled",
            Status::Stopped => "it was stopped",
        };
        LinkMissing { server: server.into(), status: Some(status), phase: None, message: message.into(), hints: vec![] }
    }
}

impl<L> Clone for View<L> {
    fn clone(&self) -> Self {
        Self {
            state: self.state,
            heeded: self.heeded,
            connection: self.connection.clone(),
            failure: self.failure.clone(),
            restarts: self.restarts,
            stderr: self.stderr.clone(),
        }
    }
}

impl<L> Connection<L> {
    pub(super) fn new(link: L) -> Self {
        Self { link: Arc::new(link), since: Instant::now(), circuit: Mutex::default() }
    }

    /// The link for one call, unless calls over it have failed one after the other.
    pub(super) fn admit(&self) -> Result<Arc<L>, ServerFailure> {
        let mut circuit = self.circuit.lock();
        match circuit.admit(Instant::now()) {
            Ok(()) => Ok(self.link.clone()),
            Err(_) => Err(spared(&circuit)),
        }
    }

    /// Why calls are not let through, if it is so.
    pub(super) fn trouble(&self) -> Option<ServerFailure> {
        let circuit = self.circuit.lock();
        circuit.closed_for(Instant::now()).map(|_| spared(&circuit))
    }

    pub(super) fn report(&self, end: CallEnd) {
        self.circuit.lock().report(end, Instant::now());
    }
}

fn spared(circuit: &Circuit) -> ServerFailure {
    let wait = circuit.closed_for(Instant::now()).unwrap_or_default().as_secs_f64().ceil();
    let message = format!("the last {} calls failed; the next is let through in {wait} s", circuit.failures());
    ServerFailure::new(Phase::ToolCall, &message, &[])
}
