//! Starts, watches, restarts and stops MCP servers as their entries require.
//!
//! Each server has one supervisor, a task that follows `state_machine`. Servers share nothing but the limit on concurrent
//! starts, so a server that hangs, crashes or floods does not affect others. How a server is connected is not known here;
//! [`Connect`] does that.

mod circuit;
mod connect;
mod events;
mod failure;
mod health;
mod info;
mod options;
mod roster;
mod slot;
mod start_limiter;
mod state_machine;
mod supervisor;
#[cfg(test)]
mod tests;

use ringfence_core::sync::Mutex;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use ringfence_entries::ServerEntry;
use ringfence_store::Audit;
use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

pub(crate) use circuit::{CallEnd, NoResponse};
pub(crate) use connect::{Connect, ConnectFailure, Link, LinkEnd, Stage, ToolSummary};
pub(crate) use failure::LinkMissing;
pub(crate) use info::ServerInfo;
pub(crate) use options::FleetOptions;
pub(crate) use roster::Skipped;
pub(crate) use state_machine::Status;
#[cfg(test)]
pub(crate) use tests::fake;

use roster::Roster;
use slot::{Connection, Goal, Slot};
use start_limiter::StartLimiter;
use state_machine::{Idle, State};
use supervisor::Supervisor;

/// All servers. Clones share their state. When the last clone is dropped, all servers are killed.
pub(crate) struct Fleet<C: Connect>(Arc<Inner<C>>);

struct Inner<C: Connect> {
    state: Arc<FleetState<C>>,
    _cancel_on_drop: DropGuard,
}

/// The state that all supervisors use.
struct FleetState<C: Connect> {
    connect: C,
    audit: Audit,
    options: FleetOptions,
    start_limiter: StartLimiter,
    tasks: TaskTracker,
    cancel: CancellationToken,
    changes: watch::Sender<u64>,
    roster: Mutex<Roster<C::Link>>,
}

impl<C: Connect> Fleet<C> {
    pub(crate) fn new(connect: C, audit: Audit, options: FleetOptions) -> Self {
        let cancel = CancellationToken::new();
        let state = FleetState {
            connect,
            audit,
            start_limiter: StartLimiter::new(options.max_quick_starts, options.max_slow_starts, options.slow_after),
            options,
            tasks: TaskTracker::new(),
            cancel: cancel.clone(),
            changes: watch::Sender::new(0),
            roster: Mutex::default(),
        };
        Self(Arc::new(Inner { state: Arc::new(state), _cancel_on_drop: cancel.drop_guard() }))
    }

    /// Replaces the entries, without waiting for the servers: new ones are started, missing ones stopped, changed ones
    /// restarted, and the others are not touched. A server that starts on demand waits for its first use, also after a
    /// change. Returns the entries that were not accepted.
    pub(crate) fn apply(&self, entries: Vec<ServerEntry>) -> Vec<Skipped> {
        let state = &self.0.state;
        let mut roster = state.roster();
        let applied = roster.apply(entries, state.options.max_servers);
        for slot in applied.new {
            let (supervisor, cancel) = (Supervisor::new(state.clone(), slot), state.cancel.clone());
            state.tasks.spawn(async move { cancel.run_until_cancelled(supervisor.run()).await });
        }
        drop(roster);
        state.notify_changed();
        for skipped in &applied.skipped {
            tracing::warn!("the entry of server {} is skipped: {}", skipped.name, skipped.reason);
        }
        applied.skipped
    }

    /// Returns the link of a server, if it is connected.
    pub(crate) fn link(&self, name: &str) -> Option<Arc<C::Link>> {
        let slot = self.slot(name)?;
        let view = slot.view.borrow();
        view.connection.as_ref().map(|connection| connection.link.clone())
    }

    /// Returns the link for one call, unless the circuit breaker refuses it. Waits as [`Fleet::await_link`] does. The
    /// caller must report the end of the call with [`Fleet::call_ended`].
    pub(crate) async fn admit(&self, name: &str, limit: Duration) -> Result<Arc<C::Link>, LinkMissing> {
        let connection = self.await_connection(name, limit).await?;
        connection.admit().map_err(|failure| LinkMissing::from_failure(name, Status::Connected, failure))
    }

    /// Returns the link without counting a call. Waits while the server is being connected. A server that has not been
    /// used yet is started; one that failed and has cooled down is tried once more.
    pub(crate) async fn await_link(&self, name: &str, limit: Duration) -> Result<Arc<C::Link>, LinkMissing> {
        Ok(self.await_connection(name, limit).await?.link.clone())
    }

    async fn await_connection(&self, name: &str, limit: Duration) -> Result<Arc<Connection<C::Link>>, LinkMissing> {
        let slot = self.slot(name).ok_or_else(|| LinkMissing::unknown(name))?;
        let deadline = Instant::now() + limit;
        let mut views = slot.view.subscribe();
        loop {
            {
                let view = views.borrow_and_update();
                let is_current = view.applied_version == slot.desired.borrow().version;
                match (&view.connection, view.state) {
                    _ if !is_current => {}
                    (Some(connection), _) => return Ok(Arc::clone(connection)),
                    (None, State::Failed { has_cooled_down: true, .. } | State::Idle(Idle::Unused)) => {
                        slot.start_requested.notify_one();
                    }
                    (None, state) if matches!(state.status(), Status::Connecting | Status::Idle) => {}
                    (None, _) => return Err(view.link_missing(name)),
                }
            }
            if !matches!(timeout_at(deadline, views.changed()).await, Ok(Ok(()))) {
                return Err(slot.view.borrow().link_missing(name));
            }
        }
    }

    /// Reports the end of a call to the circuit breaker of the connection.
    pub(crate) fn call_ended(&self, name: &str, link: &Arc<C::Link>, end: CallEnd) {
        let Some(slot) = self.slot(name) else { return };
        let connection = slot.view.borrow().connection.clone();
        if let Some(connection) = connection.filter(|connection| Arc::ptr_eq(&connection.link, link)) {
            connection.report(end);
        }
    }

    /// The connected servers, sorted by name.
    pub(crate) fn connected(&self) -> Vec<(Arc<ServerEntry>, Arc<C::Link>)> {
        let link =
            |slot: &Slot<C::Link>| slot.view.borrow().connection.as_ref().map(|connection| connection.link.clone());
        self.slots().iter().filter_map(|slot| Some((slot.entry(), link(slot)?))).collect()
    }

    /// Describes one server, with the last lines of its stderr.
    pub(crate) fn info(&self, name_or_uuid: &str) -> Option<ServerInfo> {
        let slot = self.0.state.roster().find(name_or_uuid)?;
        Some(ServerInfo::detailed(&slot))
    }

    /// Describes all servers, sorted by name.
    pub(crate) fn all(&self) -> Vec<ServerInfo> {
        self.slots().iter().map(|slot| ServerInfo::brief(slot)).collect()
    }

    /// A counter that grows whenever a server is added, removed or changed.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.0.state.changes.subscribe()
    }

    /// Notifies the subscribers of [`Fleet::changes`] that the offer of a server has changed.
    pub(crate) fn mark_changed(&self) {
        self.0.state.notify_changed();
    }

    /// Waits until the first attempt of every server has a result.
    pub(crate) async fn wait_for_first_attempts(&self, limit: Duration) {
        let mut changes = self.changes();
        let all_tried = async {
            loop {
                changes.borrow_and_update();
                if self.slots().iter().all(|slot| slot.has_first_result()) || changes.changed().await.is_err() {
                    return;
                }
            }
        };
        let _ = timeout(limit, all_tried).await;
    }

    /// Starts or restarts a server, and counts its attempts from zero. Returns false if there is no such server or it is
    /// disabled. Afterwards its old link is no longer returned.
    pub(crate) async fn restart(&self, name: &str) -> bool {
        let Some(slot) = self.slot(name) else { return false };
        let Some(version) = slot.restart() else { return false };
        let mut views = slot.view.subscribe();
        // A supervisor responds at once, unless the fleet is being shut down.
        timeout(Duration::from_secs(1), views.wait_for(|view| view.applied_version >= version)).await.is_ok()
    }

    /// Stops all servers concurrently. No server starts afterwards.
    pub(crate) async fn shut_down(&self) {
        const GRACE: Duration = Duration::from_secs(1);
        let state = &self.0.state;
        state.roster().close();
        state.tasks.close();
        if timeout(state.options.stop_timeout + GRACE, state.tasks.wait()).await.is_err() {
            state.cancel.cancel();
            if timeout(GRACE, state.tasks.wait()).await.is_err() {
                tracing::warn!("{} tasks of hosted servers did not end", state.tasks.len());
            }
        }
    }

    fn slot(&self, name: &str) -> Option<Arc<Slot<C::Link>>> {
        self.0.state.roster().get(name)
    }

    fn slots(&self) -> Vec<Arc<Slot<C::Link>>> {
        self.0.state.roster().all()
    }
}

impl<C: Connect> Clone for Fleet<C> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<C: Connect> FleetState<C> {
    fn roster(&self) -> MutexGuard<'_, Roster<C::Link>> {
        self.roster.lock()
    }

    fn notify_changed(&self) {
        self.changes.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Removes a stopped server from the roster, unless it was added again meanwhile. Returns whether it was removed.
    fn remove_if_requested(&self, slot: &Slot<C::Link>) -> bool {
        let mut roster = self.roster();
        let is_removed = slot.desired.borrow().goal == Goal::Remove;
        if is_removed {
            roster.remove(&slot.entry().uuid);
        }
        is_removed
    }
}
