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

pub(crate) use circuit::{CallEnd, NoAnswer};
pub(crate) use connect::{Connect, ConnectFailure, Link, LinkEnd, Stage, ToolSummary};
pub(crate) use failure::LinkMissing;
pub(crate) use info::ServerInfo;
pub(crate) use options::FleetOptions;
pub(crate) use roster::Skipped;
pub(crate) use state_machine::Status;

use roster::Roster;
use slot::{Connection, Slot, Wish};
use start_limiter::Places;
use state_machine::State;
use supervisor::Supervisor;

/// Cheap to clone; all clones are one. When the last is dropped, all servers are killed.
pub(crate) struct Fleet<C: Connect>(Arc<Inner<C>>);

struct Inner<C: Connect> {
    shared: Arc<Shared<C>>,
    _end: DropGuard,
}

/// What supervisors share.
struct Shared<C: Connect> {
    connect: C,
    audit: Audit,
    options: FleetOptions,
    places: Places,
    tasks: TaskTracker,
    end: CancellationToken,
    changes: watch::Sender<u64>,
    roster: Mutex<Roster<C::Link>>,
}

impl<C: Connect> Fleet<C> {
    pub(crate) fn new(connect: C, audit: Audit, options: FleetOptions) -> Self {
        let end = CancellationToken::new();
        let shared = Shared {
            connect,
            audit,
            places: Places::new(options.starts_at_once, options.slow_starts_at_once, options.slow_after),
            options,
            tasks: TaskTracker::new(),
            end: end.clone(),
            changes: watch::Sender::new(0),
            roster: Mutex::default(),
        };
        Self(Arc::new(Inner { shared: Arc::new(shared), _end: end.drop_guard() }))
    }

    /// Makes the servers those of the entries, without waiting: new ones are started, those that are missing are
    /// stopped, changed ones restarted. The rest is not touched. Returns what could not be taken.
    pub(crate) fn apply(&self, entries: Vec<ServerEntry>) -> Vec<Skipped> {
        let shared = &self.0.shared;
        let mut roster = shared.roster();
        let applied = roster.apply(entries, shared.options.most_servers);
        for slot in applied.new {
            let (supervisor, end) = (Supervisor::new(shared.clone(), slot), shared.end.clone());
            shared.tasks.spawn(async move { end.run_until_cancelled(supervisor.run()).await });
        }
        drop(roster);
        shared.changed();
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
        connection.admit().map_err(|failure| LinkMissing::because(name, Status::Connected, failure))
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
                let is_current = view.heeded == slot.desired.borrow().version;
                match (&view.connection, view.state) {
                    _ if !is_current => {}
                    (Some(connection), _) => return Ok(Arc::clone(connection)),
                    (None, State::Failed { has_cooled: true, .. }) => {
                        slot.wanted.notify_one();
                    }
                    (None, state) if state.status() == Status::Connecting => {}
                    (None, _) => return Err(view.why_missing(name)),
                }
            }
            if !matches!(timeout_at(until, views.changed()).await, Ok(Ok(()))) {
                return Err(slot.view.borrow().why_missing(name));
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
        let slot = self.0.shared.roster().find(name_or_uuid)?;
        Some(ServerInfo::detailed(&slot))
    }

    /// All servers, by name.
    pub(crate) fn all(&self) -> Vec<ServerInfo> {
        self.slots().iter().map(|slot| ServerInfo::brief(slot)).collect()
    }

    /// Changes whenever a server came, went or changed.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.0.shared.changes.subscribe()
    }

    /// Tells those that watch [`Fleet::changes`] that a server offers something else than before.
    pub(crate) fn touch(&self) {
        self.0.shared.changed();
    }

    /// Waits until no server is in its first attempt.
    pub(crate) async fn settle(&self, patience: Duration) {
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
        timeout(Duration::from_secs(1), views.wait_for(|view| view.heeded >= version)).await.is_ok()
    }

    /// Stops all servers, in parallel. Nothing starts afterwards.
    pub(crate) async fn shut_down(&self) {
        const GRACE: Duration = Duration::from_secs(1);
        let shared = &self.0.shared;
        shared.roster().close();
        shared.tasks.close();
        if timeout(shared.options.stop_within + GRACE, shared.tasks.wait()).await.is_err() {
            shared.end.cancel();
            if timeout(GRACE, shared.tasks.wait()).await.is_err() {
                tracing::warn!("{} tasks of servers did not end", shared.tasks.len());
            }
        }
    }

    fn slot(&self, name: &str) -> Option<Arc<Slot<C::Link>>> {
        self.0.shared.roster().named(name)
    }

    fn slots(&self) -> Vec<Arc<Slot<C::Link>>> {
        self.0.shared.roster().all()
    }
}

impl<C: Connect> Clone for Fleet<C> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<C: Connect> Shared<C> {
    fn roster(&self) -> MutexGuard<'_, Roster<C::Link>> {
        self.roster.lock()
    }

    fn changed(&self) {
        self.changes.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Forgets a server that is at rest, unless it was added again meanwhile.
    fn forget(&self, slot: &Slot<C::Link>) -> bool {
        let mut roster = self.roster();
        let is_gone = slot.desired.borrow().wish == Wish::Remove;
        if is_gone {
            roster.forget(&slot.entry().uuid);
        }
        is_gone
    }
}
