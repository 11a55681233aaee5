//! The MCP servers behind this one: the fleet that runs them, their combined catalogues, and the relay of calls to them.

mod notifications;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use ringfence_core::sync::Mutex;
use ringfence_entries::{Profile, ServerEntry, TOOL_SEPARATOR, tool_prefix};
use ringfence_mcp::client::Context;
use ringfence_mcp::clients::Clients;
use ringfence_mcp::era::Era;
use ringfence_mcp::rpc::Outcome;
use ringfence_mcp::sanitize;
use ringfence_servers::{Host, Listing, ServerSource};
use ringfence_store::{Audit, Store, StoreError};
use serde_json::{Value, json};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

pub(crate) use notifications::Changes;

use crate::authorize::Pins;
use crate::catalogue::{
    Candidate, Catalogue, CatalogueCache, CatalogueStore, KnownServers, Member, Revision, Route, View, Withheld,
    name_of,
};
use crate::connection::{Connector, ServerLink};
use crate::fleet::{Fleet, FleetOptions, Status};
use crate::relay::Relay;

/// Time after the start in which lists wait for servers that have not been tried yet.
const FIRST_START_WAIT: Duration = Duration::from_secs(5);

/// Time after the start in which `initialize` waits for the only server of a profile, and the time later on: a server that
/// is down must not keep this one from responding.
const FIRST_DESCRIBE_WAIT: Duration = Duration::from_secs(20);
const DESCRIBE_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum time for the stored catalogues to be loaded after the start; it takes milliseconds.
const LOAD_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum number of notifications to servers that are being sent.
const MAX_NOTIFICATIONS: usize = 64;

/// Maximum number of messages of servers that wait to be forwarded.
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
    source: ServerSource,
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

pub struct HostingOptions {
    pub host: Host,
    pub profiles: BTreeMap<String, Profile>,
    pub audit: Audit,
    /// The store of pins and added servers.
    pub store: Store,
    /// The entries of all servers.
    pub source: ServerSource,
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

    /// Waits a little for servers that have just been started: many clients read lists only once.
    pub(crate) async fn settle(&self) {
        let remaining = (self.0.started + FIRST_START_WAIT).saturating_duration_since(Instant::now());
        if remaining.is_zero() {
            return;
        }
        self.0.fleet.settle(remaining).await;
        let current = *self.0.fleet.changes().borrow();
        let mut changes = self.0.changes.subscribe();
        let _ = tokio::time::timeout(remaining, changes.wait_for(|changes| changes.fleet >= current)).await;
    }

    /// The current offer of a profile. `reserved` are the names of our own tools.
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

    /// All servers of a profile with their tools, whether they run or not. Cached until something changes.
    pub async fn known_servers(&self, profile: &Profile) -> Arc<KnownServers> {
        let mut changes = self.0.changes.subscribe();
        let _ = tokio::time::timeout(LOAD_TIMEOUT, changes.wait_for(|changes| changes.fleet > 0)).await;
        self.0.known_servers(profile)
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

    /// Derives the route of a tool that is in no list from its prefix: its server may be starting again.
    pub(crate) fn route_by_prefix(&self, profile: &Profile, name: &str) -> Option<Route> {
        if !profile.prefix {
            return None;
        }
        let all = self.0.fleet.all();
        let route =
            all.iter().filter(|info| info.enable && profile.has_server(&info.name, &info.uuid)).find_map(|info| {
                let tool = name.strip_prefix(&tool_prefix(&info.name))?.strip_prefix(TOOL_SEPARATOR)?;
                Some(Route { server: info.name.clone(), uuid: info.uuid.clone(), name: tool.to_owned() })
            })?;
        // A server that has just connected may not be in the lists yet.
        let has_tool = |link: Arc<ServerLink>| link.catalogue().tools.iter().any(|tool| name_of(tool) == route.name);
        let is_possible = self.0.fleet.link(&route.server).is_none_or(has_tool);
        (is_possible && profile.has_tool(&route.server, &route.name)).then_some(route)
    }

    /// The uuid of a server, for a route to it.
    pub(crate) fn uuid(&self, server: &str) -> String {
        self.0.fleet.info(server).map(|info| info.uuid).unwrap_or_default()
    }

    /// The withheld items of a server, if it is connected.
    pub(crate) fn withheld(&self, server: &str, uuid: &str) -> Option<Withheld> {
        Some(self.0.pins.withheld(uuid, &self.0.fleet.link(server)?.catalogue()))
    }

    /// The `initialize` result of a server, from its current or last connection, with the accepted instructions.
    pub(crate) async fn describe(&self, server: &str, era: Era) -> Option<Value> {
        let mut description = self.current_or_last_description(server, era).await?;
        sanitize::list_item(&mut description, "");
        let uuid = self.0.fleet.info(server)?.uuid;
        let instructions = self.0.pins.instructions(&uuid, description["instructions"].as_str());
        if let Value::Object(fields) = &mut description {
            match instructions {
                Some(instructions) => fields.insert("instructions".into(), instructions.into()),
                None => fields.shift_remove("instructions"),
            };
        }
        Some(description)
    }

    async fn current_or_last_description(&self, server: &str, era: Era) -> Option<Value> {
        let first_wait = (self.0.started + FIRST_DESCRIBE_WAIT).saturating_duration_since(Instant::now());
        let link = self.0.fleet.await_link(server, first_wait.max(DESCRIBE_TIMEOUT)).await;
        let key = (server.to_owned(), era == Era::Modern);
        let Ok(link) = link else { return self.0.descriptions.lock().get(&key).cloned() };
        let description = link.upstream_for(era).await.description().clone();
        self.0.descriptions.lock().insert(key, description.clone());
        Some(description)
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

    /// Sets the log level of every server with the `logging` capability.
    pub(crate) async fn set_log_level(&self, profile: &Profile, params: Value, context: &Context) -> Outcome {
        let has_logging = |link: &ServerLink| link.upstream.description()["capabilities"].get("logging").is_some();
        for (entry, link) in self.0.fleet.connected() {
            if profile.has_server(&entry.name, &entry.uuid) && has_logging(&link) {
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

    fn known_servers(&self, profile: &Profile) -> Arc<KnownServers> {
        // Read before anything else: a change in the meantime makes the cached entry invalid.
        let changes = *self.changes.borrow();
        let revision = Revision {
            lists: changes.version,
            fleet: *self.fleet.changes().borrow(),
            pins: changes.fleet,
            stored: self.catalogues.revision(),
        };
        if let Some(known) = self.cache.lock().get(revision, profile) {
            return known;
        }
        let listing = self.source.current();
        let statuses: HashMap<String, Status> =
            self.fleet.all().into_iter().map(|info| (info.name, info.status)).collect();
        let candidates: Vec<Candidate<'_>> = listing
            .servers
            .iter()
            .map(|listed| {
                // Entries over the limit of the fleet have no status.
                let status = statuses.get(&listed.entry.name).copied().unwrap_or(Status::Stopped);
                candidate(&listed.entry, status.name(), &self.catalogues, &self.pins)
            })
            .collect();
        let known = Arc::new(KnownServers::new(profile, &candidates));
        self.cache.lock().insert(revision, profile, &known);
        known
    }

    /// Updates the stored catalogues of connected servers in memory. Returns the servers whose tools have changed.
    fn update_catalogues(&self) -> Vec<String> {
        let listing = self.source.current();
        let is_listed = |uuid: &str| listing.servers.iter().any(|listed| listed.entry.uuid == uuid);
        let has_changed = |link: &ServerLink, uuid: &str| self.catalogues.update(uuid, &link.catalogue().tools);
        let connected = self.fleet.connected().into_iter();
        let changed = connected.filter(|(entry, link)| is_listed(&entry.uuid) && has_changed(link, &entry.uuid));
        changed.map(|(entry, _)| entry.uuid.clone()).collect()
    }
}

fn candidate<'a>(
    entry: &'a ServerEntry,
    status: &'static str,
    catalogues: &CatalogueStore,
    pins: &Pins,
) -> Candidate<'a> {
    let list = catalogues.get(&entry.uuid);
    let withheld = list.as_ref().map(|list| pins.withheld_tools(&entry.uuid, list.tools())).unwrap_or_default();
    Candidate { entry, status, list, withheld }
}

/// Returns the servers with their stored tools, without running any. `entries` must be all entries.
pub async fn stored_servers(store: &Store, entries: &[ServerEntry]) -> Result<KnownServers, StoreError> {
    let uuids: Vec<String> = entries.iter().map(|entry| entry.uuid.clone()).collect();
    let (catalogues, pins) = (CatalogueStore::new(store.clone()), Pins::new(store.clone(), false));
    catalogues.load(&uuids).await?;
    pins.refresh(&uuids).await?;
    let status = |entry: &ServerEntry| if entry.enable { "not running" } else { "disabled" };
    let candidates: Vec<Candidate<'_>> =
        entries.iter().map(|entry| candidate(entry, status(entry), &catalogues, &pins)).collect();
    Ok(KnownServers::new(&Profile::default(), &candidates))
}

#[cfg(test)]
mod tests {
    use ringfence_entries::entry_from_json;
    use ringfence_store::OnConflict;

    use super::*;

    #[tokio::test]
    async fn stored_servers_have_their_accepted_tools() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("state")).unwrap();
        let entry = entry_from_json("a", &json!({"command": "x"})).unwrap().0;
        let entry = store.add_server(entry, None, OnConflict::Refuse).await.unwrap();
        let [seen, changed] = [json!({"name": "seen"}), json!({"name": "changed", "description": "was"})];
        store.set_catalogue(&entry.uuid, &[seen.clone(), changed.clone()]).await.unwrap();
        let accepted = Catalogue { tools: vec![seen.clone(), changed], ..Catalogue::default() };
        Pins::new(store.clone(), false).accept(&entry.uuid, &accepted, None).await.unwrap();
        store.set_catalogue(&entry.uuid, &[seen, json!({"name": "changed", "description": "is"})]).await.unwrap();
        let known = stored_servers(&store, &[entry]).await.unwrap();
        let server = &known.servers()[0];
        assert_eq!(server.tools.iter().map(name_of).collect::<Vec<_>>(), ["seen"]);
        assert_eq!(server.status, "not running");
    }
}
