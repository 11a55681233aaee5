//! The MCP servers behind this one: the fleet that runs them, their combined catalogues, and the relay of calls to them.

mod description;
mod known_servers;
mod notifications;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use ringfence_core::sync::Mutex;
use ringfence_entries::{Profile, ServerEntry, TOOL_SEPARATOR, tool_prefix};
use ringfence_mcp::client::Context;
use ringfence_mcp::clients::Clients;
use ringfence_mcp::rpc::Outcome;
use ringfence_servers::{Host, Listing, ListingWatcher};
use ringfence_store::{Audit, Store};
use serde_json::{Value, json};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

pub use known_servers::stored_servers;
pub(crate) use notifications::Changes;

use crate::authorize::{Action, Authorizer, Object, Pins, Subject};
use crate::catalogue::{Catalogue, CatalogueCache, CatalogueStore, Member, Route, View, Withheld, name_of};
use crate::connection::{Connector, ServerLink};
use crate::fleet::{Fleet, FleetOptions, ServerInfo, Status};
use crate::relay::Relay;

/// Time after the start in which lists wait for servers that have not been tried yet.
const FIRST_START_WAIT: Duration = Duration::from_secs(5);

/// Maximum number of concurrent notifications to servers.
const MAX_NOTIFICATIONS: usize = 64;

/// Maximum number of queued messages of servers.
const MAX_QUEUED_MESSAGES: usize = 64;

/// All hosted and remote servers. Clones share their state.
#[derive(Clone)]
pub struct Hosting(Arc<Inner>);

struct Inner {
    fleet: Fleet<Connector>,
    relay: Relay,
    host: Host,
    profiles: BTreeMap<String, Arc<Profile>>,
    pins: Arc<Pins>,
    store: Store,
    source: ListingWatcher,
    notifications: Arc<Semaphore>,
    clients: Clients,
    /// The last catalogues of servers, offered while they are restarted.
    last_catalogues: Mutex<HashMap<String, Arc<Catalogue>>>,
    views: Mutex<HashMap<String, (u64, Arc<View>)>>,
    /// The last `initialize` results, by server name and whether the client is modern.
    descriptions: Mutex<HashMap<(String, bool), Value>>,
    catalogues: CatalogueStore,
    cache: Mutex<CatalogueCache>,
    changes: watch::Sender<Changes>,
    started: Instant,
    tasks: Mutex<Vec<AbortOnDropHandle<()>>>,
}

/// The parts and settings of [`Hosting`].
pub struct HostingOptions {
    pub host: Host,
    pub profiles: BTreeMap<String, Profile>,
    pub audit: Audit,
    /// The store of pins and added servers.
    pub store: Store,
    /// The entries of all servers.
    pub source: ListingWatcher,
    /// Whether everything that a server offers at its first connection is accepted; later changes are withheld.
    pub pin_on_first_use: bool,
}

impl Hosting {
    /// Starts all enabled servers without waiting for them, and applies changes of the entries.
    pub fn start(options: HostingOptions) -> Self {
        let (sender, messages) = mpsc::channel(MAX_QUEUED_MESSAGES);
        let pins = Arc::new(Pins::new(options.store.clone(), options.pin_on_first_use));
        let connector = Connector::new(options.host.clone(), Arc::clone(&pins), sender);
        let fleet = Fleet::new(connector, options.audit.clone(), FleetOptions::default());
        let hosting = Self(Arc::new(Inner {
            relay: Relay::new(fleet.clone(), options.audit),
            fleet,
            host: options.host,
            profiles: options.profiles.into_iter().map(|(name, profile)| (name, Arc::new(profile))).collect(),
            pins,
            catalogues: CatalogueStore::new(options.store.clone()),
            store: options.store,
            source: options.source,
            notifications: Arc::new(Semaphore::new(MAX_NOTIFICATIONS)),
            clients: Clients::default(),
            last_catalogues: Mutex::default(),
            views: Mutex::default(),
            descriptions: Mutex::default(),
            cache: Mutex::default(),
            changes: watch::Sender::default(),
            started: Instant::now(),
            tasks: Mutex::default(),
        }));
        let notifier = notifications::forward(Arc::downgrade(&hosting.0), hosting.0.fleet.changes(), messages);
        let follower = apply_changes(Arc::downgrade(&hosting.0), hosting.0.source.subscribe());
        hosting.0.apply();
        let tasks = [tokio::spawn(notifier), tokio::spawn(follower)];
        *hosting.0.tasks.lock() = tasks.map(AbortOnDropHandle::new).into();
        hosting
    }

    /// Stops all servers.
    pub async fn shut_down(&self) {
        self.0.tasks.lock().clear();
        self.0.fleet.shut_down().await;
        self.0.host.shut_down().await;
    }

    pub(crate) fn fleet(&self) -> &Fleet<Connector> {
        &self.0.fleet
    }

    pub(crate) fn relay(&self) -> &Relay {
        &self.0.relay
    }

    pub(crate) fn store(&self) -> &Store {
        &self.0.store
    }

    /// Reads the entries again after a change.
    pub(crate) async fn reload(&self) {
        self.0.source.refresh().await;
        self.0.apply();
    }

    pub(crate) fn pins(&self) -> &Arc<Pins> {
        &self.0.pins
    }

    pub(crate) fn clients(&self) -> &Clients {
        &self.0.clients
    }

    pub(crate) fn profile(&self, name: &str) -> Option<Arc<Profile>> {
        self.0.profiles.get(name).cloned()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.fleet.all().is_empty()
    }

    pub(crate) fn changes(&self) -> watch::Receiver<Changes> {
        self.0.changes.subscribe()
    }

    /// Waits until all servers were tried once or `FIRST_START_WAIT` is over: many clients read lists only once.
    pub(crate) async fn wait_for_first_starts(&self) {
        let remaining = (self.0.started + FIRST_START_WAIT).saturating_duration_since(Instant::now());
        if remaining.is_zero() {
            return;
        }
        self.0.fleet.wait_for_first_attempts(remaining).await;
        let current = *self.0.fleet.changes().borrow();
        let mut changes = self.0.changes.subscribe();
        let _ = tokio::time::timeout(remaining, changes.wait_for(|changes| changes.fleet >= current)).await;
    }

    /// The current offer of a profile. `reserved` are the names of the built-in tools.
    pub(crate) fn view(&self, key: &str, profile: &Profile, reserved: &HashSet<&str>) -> Arc<View> {
        let version = self.0.changes.borrow().version;
        if let Some((cached, view)) = self.0.views.lock().get(key)
            && *cached == version
        {
            return Arc::clone(view);
        }
        let view = Arc::new(View::new(profile, &self.0.members(), reserved));
        for collision in &view.collisions {
            tracing::warn!("the {collision} is not offered: another one has the same name");
        }
        self.0.views.lock().insert(key.to_owned(), (version, Arc::clone(&view)));
        view
    }

    /// Waits for a server that is being started, and for its tools to be known.
    pub(crate) async fn wait_for_tools(&self, server: &str, until: Instant) {
        let timeout = until.saturating_duration_since(Instant::now());
        if !matches!(tokio::time::timeout_at(until, self.0.fleet.await_link(server, timeout)).await, Ok(Ok(_))) {
            return;
        }
        let current = *self.0.fleet.changes().borrow();
        let mut changes = self.0.changes.subscribe();
        let _ = tokio::time::timeout_at(until, changes.wait_for(|changes| changes.fleet >= current)).await;
    }

    /// Derives the route of a tool that is in no list from the prefix of its name: the server may be restarting. The
    /// route exists only if the subject may use the tool.
    pub(crate) fn route_by_prefix(&self, authorizer: &Authorizer, subject: Subject<'_>, name: &str) -> Option<Route> {
        let allows = |object: Object<'_>| authorizer.allows(subject, Action::UseServers, object);
        let is_allowed = |info: &&ServerInfo| allows(Object::Server { name: &info.name, uuid: &info.uuid });
        let all = self.0.fleet.all();
        let route = all.iter().filter(|info| info.enable).filter(is_allowed).find_map(|info| {
            let tool = name.strip_prefix(&tool_prefix(&info.name))?.strip_prefix(TOOL_SEPARATOR)?;
            Some(Route { server: info.name.clone(), uuid: info.uuid.clone(), name: tool.to_owned() })
        })?;
        // A server that has just connected may not be in the lists yet.
        let has_tool = |link: Arc<ServerLink>| link.catalogue().tools.iter().any(|tool| name_of(tool) == route.name);
        let is_possible = self.0.fleet.link(&route.server).is_none_or(has_tool);
        let tool = Object::Tool { server: &route.server, uuid: &route.uuid, tool: &route.name };
        (is_possible && allows(tool)).then_some(route)
    }

    /// The uuid of a server, for a route to it.
    pub(crate) fn uuid(&self, server: &str) -> String {
        self.0.fleet.info(server).map(|info| info.uuid).unwrap_or_default()
    }

    /// The withheld items of a server, if it is connected.
    pub(crate) fn withheld(&self, server: &str, uuid: &str) -> Option<Withheld> {
        Some(self.0.pins.withheld(uuid, &self.0.fleet.link(server)?.catalogue()))
    }

    /// Notifies every connected server of the legacy era; the modern era has no such notifications.
    pub(crate) fn notify_servers(&self, method: &str, params: &Value) {
        for (_, link) in self.0.fleet.connected() {
            // Notifications of a client that floods are dropped.
            let Ok(permit) = Arc::clone(&self.0.notifications).try_acquire_owned() else { return };
            let (method, params) = (method.to_owned(), Some(params.clone()).filter(|params| !params.is_null()));
            // The task ends when the message is written, or when the connection ends.
            tokio::spawn(async move {
                let _ = link.upstream.notify(&method, params).await;
                drop(permit);
            });
        }
    }

    /// Sets the log level of every server that the client may use and that has the `logging` capability.
    pub(crate) async fn set_log_level(&self, authorizer: &Authorizer, params: Value, context: &Context) -> Outcome {
        let is_allowed = |entry: &ServerEntry| {
            let server = Object::Server { name: &entry.name, uuid: &entry.uuid };
            authorizer.allows(Subject::principal(&context.principal), Action::UseServers, server)
        };
        let has_logging = |link: &ServerLink| link.upstream.description()["capabilities"].get("logging").is_some();
        for (entry, link) in self.0.fleet.connected() {
            if is_allowed(&entry) && has_logging(&link) {
                self.0.relay.set_log_level(&link, params.clone(), context).await;
            }
        }
        Ok(json!({}))
    }
}

/// Applies the entries to the fleet whenever they change.
async fn apply_changes(hosting: Weak<Inner>, mut listings: watch::Receiver<Arc<Listing>>) {
    while listings.changed().await.is_ok() {
        let Some(hosting) = hosting.upgrade() else { return };
        hosting.apply();
    }
}

impl Inner {
    fn apply(&self) {
        self.fleet.apply(self.source.current().entries());
    }

    /// Connected servers, and servers that are being restarted with their last catalogue.
    fn members(&self) -> Vec<Member> {
        let mut last_catalogues = self.last_catalogues.lock();
        let links: HashMap<String, Arc<ServerLink>> =
            self.fleet.connected().into_iter().map(|(entry, link)| (entry.name.clone(), link)).collect();
        let all = self.fleet.all();
        last_catalogues.retain(|uuid, _| all.iter().any(|info| info.uuid == *uuid));
        let mut members = Vec::new();
        for info in all {
            if let Some(link) = links.get(&info.name) {
                last_catalogues.insert(info.uuid.clone(), link.catalogue());
            } else if info.status != Status::Connecting {
                continue;
            }
            let Some(catalogue) = last_catalogues.get(&info.uuid).cloned() else { continue };
            let withheld = self.pins.withheld(&info.uuid, &catalogue);
            members.push(Member { name: info.name, uuid: info.uuid, catalogue, withheld });
        }
        members
    }
}
