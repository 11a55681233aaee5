//! Other people's MCP servers, kept as their entries want them: started, watched, restarted, stopped.
//!
//! Each server has one supervisor, a task that follows the table of `life`. Servers share nothing but the places to
//! start in, so that one that hangs, crashes or floods is a matter of its own. What it takes to connect one is not
//! known here ([`Connect`]).

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

use roster::Roster;
use slot::{Connection, Goal, Slot};
use start_limiter::StartLimiter;
use state_machine::State;
use supervisor::Supervisor;

/// Cheap to clone; all clones are one. When the last is dropped, all servers are killed.
pub(crate) struct Fleet<C: Connect>(Arc<Inner<C>>);

struct Inner<C: Connect> {
    state: Arc<FleetState<C>>,
    _cancel_on_drop: DropGuard,
}

/// What supervisors share.
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
        let end = CancellationToken::new();
        let shared = FleetState {
            connect,
            audit,
            start_limiter: StartLimiter::new(options.max_quick_starts, options.max_slow_starts, options.slow_after),
            options,
            tasks: TaskTracker::new(),
            cancel: end.clone(),
            changes: watch::Sender::new(0),
            roster: Mutex::default(),
        };
        Self(Arc::new(Inner { state: Arc::new(shared), _cancel_on_drop: end.drop_guard() }))
    }

    /// Makes the servers those of the entries, without waiting: new ones are started, those that are missing are
    /// stopped, changed ones restarted. The rest is not touched. Returns what could not be taken.
    pub(crate) fn apply(&self, entries: Vec<ServerEntry>) -> Vec<Skipped> {
        let shared = &self.0.state;
        let mut roster = shared.roster();
        let applied = roster.apply(entries, shared.options.max_servers);
        for slot in applied.new {
            let (supervisor, end) = (Supervisor::new(shared.clone(), slot), shared.cancel.clone());
            shared.tasks.spawn(async move { end.run_until_cancelled(supervisor.run()).await });
        }
        drop(roster);
        shared.notify_changed();
        for skipped in &applied.skipped {
            tracing::warn!("server {} is left out: {}", skipped.name, skipped.reason);
        }
        applied.skipped
    }

    /// The link of a server that is connected.
    pub(crate) fn link(&self, name: &str) -> Option<Arc<C::Link>> {
        let slot = self.slot(name)?;
        let view = slot.view.borrow();
        view.connection.as_ref().map(|connection| connection.link.clone())
    }

    /// The link for one call, unless calls have failed one after the other. Waits as [`Fleet::await_link`] does. How
    /// the call went is to be told with [`Fleet::call_ended`].
    pub(crate) async fn admit(&self, name: &str, patience: Duration) -> Result<Arc<C::Link>, LinkMissing> {
        let connection = self.await_connection(name, patience).await?;
        connection.admit().map_err(|failure| LinkMissing::from_failure(name, Status::Connected, failure))
    }

    /// The link for what is no call. Waits while the server is being connected; one that was given up a while ago is
    /// tried once more.
    pub(crate) async fn await_link(&self, name: &str, patience: Duration) -> Result<Arc<C::Link>, LinkMissing> {
        Ok(self.await_connection(name, patience).await?.link.clone())
    }

    async fn await_connection(&self, name: &str, patience: Duration) -> Result<Arc<Connection<C::Link>>, LinkMissing> {
        let slot = self.slot(name).ok_or_else(|| LinkMissing::unknown(name))?;
        let until = Instant::now() + patience;
        let mut views = slot.view.subscribe();
        loop {
            {
                let view = views.borrow_and_update();
                let is_current = view.applied_version == slot.desired.borrow().version;
                match (&view.connection, view.state) {
                    _ if !is_current => {}
                    (Some(connection), _) => return Ok(Arc::clone(connection)),
                    (None, State::Failed { has_cooled_down: true, .. }) => {
                        slot.retry_requested.notify_one();
                    }
                    (None, state) if state.status() == Status::Connecting => {}
                    (None, _) => return Err(view.link_missing(name)),
                }
            }
            if !matches!(timeout_at(until, views.changed()).await, Ok(Ok(()))) {
                return Err(slot.view.borrow().link_missing(name));
            }
        }
    }

    /// Tells how a call over a link ended, so that a server whose calls all fail is not called for a while.
    pub(crate) fn call_ended(&self, name: &str, link: &Arc<C::Link>, end: CallEnd) {
        let Some(slot) = self.slot(name) else { return };
        let connection = slot.view.borrow().connection.clone();
        if let Some(connection) = connection.filter(|connection| Arc::ptr_eq(&connection.link, link)) {
            connection.report(end);
        }
    }

    /// The servers that are connected, by name.
    pub(crate) fn connected(&self) -> Vec<(Arc<ServerEntry>, Arc<C::Link>)> {
        let link =
            |slot: &Slot<C::Link>| slot.view.borrow().connection.as_ref().map(|connection| connection.link.clone());
        self.slots().iter().filter_map(|slot| Some((slot.entry(), link(slot)?))).collect()
    }

    /// All that is known of one server.
    pub(crate) fn info(&self, name_or_uuid: &str) -> Option<ServerInfo> {
        let slot = self.0.state.roster().find(name_or_uuid)?;
        Some(ServerInfo::detailed(&slot))
    }

    /// All servers, by name.
    pub(crate) fn all(&self) -> Vec<ServerInfo> {
        self.slots().iter().map(|slot| ServerInfo::brief(slot)).collect()
    }

    /// Changes whenever a server came, went or changed.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.0.state.changes.subscribe()
    }

    /// Tells those that watch [`Fleet::changes`] that a server offers something else than before.
    pub(crate) fn mark_changed(&self) {
        self.0.state.notify_changed();
    }

    /// Waits until no server is in its first attempt.
    pub(crate) async fn wait_for_first_attempts(&self, patience: Duration) {
        let mut changes = self.changes();
        let settled = async {
            loop {
                changes.borrow_and_update();
                if self.slots().iter().all(|slot| slot.is_settled()) || changes.changed().await.is_err() {
                    return;
                }
            }
        };
        let _ = timeout(patience, settled).await;
    }

    /// Starts a server anew, with its whole budget. Says whether there is such a server that may run; when this
    /// returns, its old link is not given out any more.
    pub(crate) async fn restart(&self, name: &str) -> bool {
        let Some(slot) = self.slot(name) else { return false };
        let Some(version) = slot.restart() else { return false };
        let mut views = slot.view.subscribe();
        // A supervisor is never busy; this only outlasts one that is being shut down.
        timeout(Duration::from_secs(1), views.wait_for(|view| view.applied_version >= version)).await.is_ok()
    }

    /// Stops all servers, in parallel. Nothing starts afterwards.
    pub(crate) async fn shut_down(&self) {
        const GRACE: Duration = Duration::from_secs(1);
        let shared = &self.0.state;
        shared.roster().close();
        shared.tasks.close();
        if timeout(shared.options.stop_timeout + GRACE, shared.tasks.wait()).await.is_err() {
            shared.cancel.cancel();
            if timeout(GRACE, shared.tasks.wait()).await.is_err() {
                tracing::warn!("{} tasks of servers did not end", shared.tasks.len());
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

    /// Forgets a server that is at rest, unless it was added again meanwhile.
    fn remove_if_requested(&self, slot: &Slot<C::Link>) -> bool {
        let mut roster = self.roster();
        let is_gone = slot.desired.borrow().goal == Goal::Remove;
        if is_gone {
            roster.remove(&slot.entry().uuid);
        }
        is_gone
    }
}
