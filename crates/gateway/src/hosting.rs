//! Other people's MCP servers, offered as one: which there are, what they offer, and how a request reaches the one it
//! is for.

mod attended;
mod catalogue;
mod connect;
mod known;
mod link;
mod parked;
mod pins;
mod raw_call;
mod ready;
mod relay;
mod remembered;
mod told;
mod view;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use ringfence_core::{AuditEvent, AuditKind};
use ringfence_core::{Failure, Kind as FailureKind};
use ringfence_entries::{Profile, TOOL_SEPARATOR, tool_prefix};
use ringfence_servers::{Host, Listing, ServerSource};
use ringfence_store::Audit;
use ringfence_store::{PinKind, Store};
use serde_json::Value;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

pub use known::{KnownServer, KnownServers, stored_servers};

pub(crate) use attended::Within;
pub(crate) use catalogue::{Kind, name_of};
pub(crate) use link::ServerLink;
pub(crate) use pins::{Pins, Selection};
pub(crate) use raw_call::CallFailure;
pub(crate) use told::Changes;
pub(crate) use view::{Route, View};

use attended::Sent;
use catalogue::Catalogue;
use connect::Connector;
use link::lock;
use parked::Parked;
use pins::Held;
use ready::Ready;
use remembered::Remembered;
use view::Member;

use crate::clean;
use crate::client::Context;
use crate::era::Era;
use crate::failure;
use crate::fleet::{CallEnd, Fleet, FleetOptions, LinkMissing, NoAnswer, Status};
use crate::http::Clients;
use crate::rpc::{Outcome, RpcError};
use crate::upstream::UpstreamError;

/// How long a call waits for a server that is being started.
const START_PATIENCE: Duration = Duration::from_secs(120);

/// How long after the start lists wait for servers that have not been tried yet.
const FIRST_STARTS: Duration = Duration::from_secs(5);

/// How long after the start clients that open a conversation with one server wait for it, and how long later on: a
/// server that is down must not keep this one from answering.
const FIRST_ABOUT: Duration = Duration::from_secs(20);
const ABOUT_PATIENCE: Duration = Duration::from_secs(2);

/// How long after the start is waited for what is known of servers from before; it is read within milliseconds.
const FIRST_READING: Duration = Duration::from_secs(5);

/// How long one server may take to set its level of logging.
const LEVEL_PATIENCE: Duration = Duration::from_secs(5);

/// Messages to servers that no client waits for, at a time.
const TELLING: usize = 64;

/// What servers say unasked that may wait to be passed on.
const UNHEARD: usize = 64;

/// All hosted servers. Cheap to clone; all clones are one.
#[derive(Clone)]
pub struct Hosting(Arc<Inner>);

struct Inner {
    fleet: Fleet<Connector>,
    host: Host,
    profiles: BTreeMap<String, Arc<Profile>>,
    pins: Arc<Pins>,
    store: Store,
    source: ServerSource,
    parked: Parked,
    telling: Arc<Semaphore>,
    audit: Audit,
    clients: Clients,
    /// What servers offered last, for the time in which they are restarted.
    known: Mutex<HashMap<String, Arc<Catalogue>>>,
    views: Mutex<HashMap<String, (u64, Arc<View>)>>,
    /// What servers said last of themselves, by their name and whether it was to a modern client.
    abouts: Mutex<HashMap<(String, bool), Value>>,
    remembered: Remembered,
    ready: Mutex<Ready>,
    changes: watch::Sender<Changes>,
    started: Instant,
    tasks: Mutex<Vec<AbortOnDropHandle<()>>>,
}

/// What hosting needs.
pub struct HostingOptions {
    pub host: Host,
    pub profiles: BTreeMap<String, Profile>,
    pub audit: Audit,
    /// Where pins and added servers are kept.
    pub store: Store,
    /// Which servers there are.
    pub source: ServerSource,
    /// Whether everything that a server offers at its first connection is accepted; later changes are held back.
    pub pin_on_first_use: bool,
}

impl Hosting {
    /// Starts the servers that there are, without waiting for any, and follows what becomes of their entries.
    pub fn start(options: HostingOptions) -> Self {
        let (said, heard) = mpsc::channel(UNHEARD);
        let pins = Arc::new(Pins::new(options.store.clone(), options.pin_on_first_use));
        let remembered = Remembered::new(options.store.clone());
        let connector = Connector::new(options.host.clone(), Arc::clone(&pins), said);
        let hosting = Self(Arc::new(Inner {
            fleet: Fleet::new(connector, options.audit.clone(), FleetOptions::default()),
            host: options.host,
            profiles: options.profiles.into_iter().map(|(name, profile)| (name, Arc::new(profile))).collect(),
            pins,
            store: options.store,
            source: options.source,
            parked: Parked::default(),
            telling: Arc::new(Semaphore::new(TELLING)),
            audit: options.audit,
            clients: Clients::default(),
            known: Mutex::default(),
            views: Mutex::default(),
            abouts: Mutex::default(),
            remembered,
            ready: Mutex::default(),
            changes: watch::Sender::default(),
            started: Instant::now(),
            tasks: Mutex::default(),
        }));
        let teller = told::tell(Arc::downgrade(&hosting.0), hosting.0.fleet.changes(), heard);
        let follower = follow(Arc::downgrade(&hosting.0), hosting.0.source.subscribe());
        hosting.0.apply();
        let tasks = [tokio::spawn(teller), tokio::spawn(follower)];
        *lock(&hosting.0.tasks) = tasks.map(AbortOnDropHandle::new).into();
        hosting
    }

    /// Ends all servers.
    pub async fn shut_down(&self) {
        lock(&self.0.tasks).clear();
        self.0.fleet.shut_down().await;
        self.0.host.shut_down().await;
    }

    pub(crate) fn fleet(&self) -> &Fleet<Connector> {
        &self.0.fleet
    }

    pub(crate) fn store(&self) -> &Store {
        &self.0.store
    }

    /// Has the entries read again, after one was changed here.
    pub(crate) async fn reload(&self) {
        self.0.source.refresh().await;
        self.0.apply();
    }

    pub(crate) fn pins(&self) -> &Pins {
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
        let left = (self.0.started + FIRST_STARTS).saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        self.0.fleet.settle(left).await;
        let seen = *self.0.fleet.changes().borrow();
        let mut changes = self.0.changes.subscribe();
        let _ = tokio::time::timeout(left, changes.wait_for(|changes| changes.fleet >= seen)).await;
    }

    /// What a profile offers now.
    pub(crate) fn view(&self, key: &str, profile: &Profile, own: &HashSet<&str>) -> Arc<View> {
        let version = self.0.changes.borrow().version;
        if let Some((made, view)) = lock(&self.0.views).get(key)
            && *made == version
        {
            return Arc::clone(view);
        }
        let view = Arc::new(View::of(profile, &self.0.members(), own));
        for collision in &view.collisions {
            tracing::warn!("the {collision} is not offered: another has its name");
        }
        lock(&self.0.views).insert(key.to_owned(), (version, Arc::clone(&view)));
        view
    }

    /// All servers of a profile with their tools, whether they run or not. Cheap as long as nothing changes.
    pub async fn known_servers(&self, profile: &Profile) -> Arc<KnownServers> {
        let mut changes = self.0.changes.subscribe();
        let _ = tokio::time::timeout(FIRST_READING, changes.wait_for(|changes| changes.fleet > 0)).await;
        self.0.known_servers(profile)
    }

    /// Waits for a server that is being started, and for its tools to be known.
    pub(crate) async fn await_first(&self, server: &str, until: Instant) {
        let patience = until.saturating_duration_since(Instant::now());
        if !matches!(tokio::time::timeout_at(until, self.0.fleet.await_link(server, patience)).await, Ok(Ok(_))) {
            return;
        }
        let seen = *self.0.fleet.changes().borrow();
        let mut changes = self.0.changes.subscribe();
        let _ = tokio::time::timeout_at(until, changes.wait_for(|changes| changes.fleet >= seen)).await;
    }

    /// A name that no list has, of a server that may come back for the call.
    pub(crate) fn guess(&self, profile: &Profile, name: &str) -> Option<Route> {
        if !profile.prefix {
            return None;
        }
        let all = self.0.fleet.all();
        let found =
            all.iter().filter(|info| info.enable && profile.has_server(&info.name, &info.uuid)).find_map(|info| {
                let own = name.strip_prefix(&tool_prefix(&info.name))?.strip_prefix(TOOL_SEPARATOR)?;
                Some(Route { server: info.name.clone(), uuid: info.uuid.clone(), name: own.to_owned() })
            })?;
        // One that has just been connected may not be in the lists yet.
        let may_have = |link: Arc<ServerLink>| link.catalogue().tools.iter().any(|tool| name_of(tool) == found.name);
        let is_possible = self.0.fleet.link(&found.server).is_none_or(may_have);
        (is_possible && profile.has_tool(&found.server, &found.name)).then_some(found)
    }

    /// Whether a tool or prompt currently differs from its accepted version. Lists may lag behind, so calls check this
    /// too.
    pub(crate) fn is_held(&self, kind: PinKind, Route { server, uuid, name }: &Route) -> bool {
        let Some(link) = self.0.fleet.link(server).filter(|_| !self.0.pins.accepts_all(uuid)) else { return false };
        self.0.pins.is_held(uuid, &link.catalogue(), kind, name)
    }

    /// The same of a resource that a server lists.
    pub(crate) fn is_resource_held(&self, server: &str, uri: &str) -> bool {
        let Some(link) = self.0.fleet.link(server) else { return false };
        let Some(info) = self.0.fleet.info(server).filter(|info| !self.0.pins.accepts_all(&info.uuid)) else {
            return false;
        };
        self.0.pins.is_held(&info.uuid, &link.catalogue(), PinKind::Resource, uri)
    }

    /// The items of a server that are held back now, if it is connected.
    pub(crate) fn held(&self, server: &str, uuid: &str) -> Option<Held> {
        Some(self.0.pins.held(uuid, &self.0.fleet.link(server)?.catalogue()))
    }

    /// The conversation with a server, waited for if it is being started.
    pub(crate) async fn link(&self, server: &str, within: Within) -> Result<Arc<ServerLink>, RpcError> {
        let link = self.0.fleet.await_link(server, START_PATIENCE.min(within.left()));
        link.await.map_err(|missing| not_there(&missing))
    }

    /// The `initialize` result of a server, from its current or last connection, with the accepted instructions.
    pub(crate) async fn about(&self, server: &str, era: Era) -> Option<Value> {
        let mut about = self.said_about(server, era).await?;
        clean::listed(&mut about, "");
        let uuid = self.0.fleet.info(server)?.uuid;
        let instructions = self.0.pins.instructions(&uuid, about["instructions"].as_str());
        if let Value::Object(fields) = &mut about {
            match instructions {
                Some(instructions) => fields.insert("instructions".into(), instructions.into()),
                None => fields.shift_remove("instructions"),
            };
        }
        Some(about)
    }

    async fn said_about(&self, server: &str, era: Era) -> Option<Value> {
        let first = (self.0.started + FIRST_ABOUT).saturating_duration_since(Instant::now());
        let link = self.0.fleet.await_link(server, first.max(ABOUT_PATIENCE)).await;
        let key = (server.to_owned(), era == Era::Modern);
        let Ok(link) = link else { return lock(&self.0.abouts).get(&key).cloned() };
        let about = link.upstream_for(era).await.about().clone();
        lock(&self.0.abouts).insert(key, about.clone());
        Some(about)
    }

    /// Tells every connected server of the legacy era; the modern one has no such notifications.
    pub(crate) fn tell_servers(&self, method: &str, params: &Value) {
        for (_, link) in self.0.fleet.connected() {
            // A client that says it all the time is not heard all the time.
            let Ok(permit) = Arc::clone(&self.0.telling).try_acquire_owned() else { return };
            let (method, params) = (method.to_owned(), Some(params.clone()).filter(|params| !params.is_null()));
            // It ends as soon as the message is written, or the connection is given up.
            tokio::spawn(async move {
                let _ = link.upstream.notify(&method, params).await;
                drop(permit);
            });
        }
    }

    /// Sets the level of every server that logs.
    pub(crate) async fn set_log_level(&self, profile: &Profile, params: Value, context: &Context) -> Outcome {
        let logs = |link: &ServerLink| link.upstream.about()["capabilities"].get("logging").is_some();
        for (entry, link) in self.0.fleet.connected() {
            if profile.has_server(&entry.name, &entry.uuid) && logs(&link) {
                // One that does not obey, or not at once, is no reason to keep the client waiting.
                let heard = Arc::default();
                let set = Box::pin(async {
                    let upstream = link.upstream_for(context.era).await;
                    relay::pass(upstream, &self.0.parked, "logging/setLevel", params.clone(), context, &heard).await
                });
                let _ = tokio::time::timeout(LEVEL_PATIENCE, set).await;
            }
        }
        Ok(serde_json::json!({}))
    }

    /// Passes a request on to a server.
    pub(crate) async fn pass(
        &self,
        server: &str,
        method: &str,
        params: Value,
        within: Within,
        context: &Context,
    ) -> Outcome {
        let link = self.0.fleet.admit(server, START_PATIENCE.min(within.left())).await;
        let mut sent = Sent::new(self, server, link.map_err(|missing| not_there(&missing))?);
        let begun = Instant::now();
        let subject = crate::http::subject(method, &params).unwrap_or_default().to_owned();
        let (link, heard) = (Arc::clone(sent.link()), Arc::clone(sent.heard()));
        let call = Box::pin(async {
            let upstream = link.upstream_for(context.era).await;
            relay::pass(upstream, &self.0.parked, method, params, context, &heard).await
        });
        let result = tokio::select! {
            biased;
            result = call => result,
            () = heard.run_out(within) => Err(UpstreamError::TimedOut),
        };
        sent.ended(end_of(&result));
        drop(sent);
        if method == "tools/call" {
            let outcome = outcome_of(&result);
            let event = AuditEvent::new(AuditKind::ToolCalled, outcome).by(&context.principal, None);
            self.0
                .audit
                .record(event.with_duration(begun.elapsed()).with("server", server).with("tool", short(&subject)));
        }
        match result {
            Ok(mut result) => {
                clean::result(method, &mut result);
                Ok(result)
            }
            Err(error) => {
                let mut error = unanswered(server, error, within.deadline);
                clean::error(&mut error);
                Err(error)
            }
        }
    }
}

/// Makes the servers those of the entries whenever these change.
async fn follow(hosting: Weak<Inner>, mut listings: watch::Receiver<Arc<Listing>>) {
    while listings.changed().await.is_ok() {
        let Some(hosting) = hosting.upgrade() else { return };
        hosting.apply();
    }
}

impl Inner {
    fn apply(&self) {
        self.fleet.apply(self.source.current().entries());
    }

    /// Connected servers, and those that are on their way back with what they offered last.
    fn members(&self) -> Vec<Member> {
        let mut known = lock(&self.known);
        let links: HashMap<String, Arc<ServerLink>> =
            self.fleet.connected().into_iter().map(|(entry, link)| (entry.name.clone(), link)).collect();
        let all = self.fleet.all();
        known.retain(|uuid, _| all.iter().any(|info| info.uuid == *uuid));
        let mut members = Vec::new();
        for info in all {
            if let Some(link) = links.get(&info.name) {
                known.insert(info.uuid.clone(), link.catalogue());
            } else if info.status != Status::Connecting {
                continue;
            }
            let Some(catalogue) = known.get(&info.uuid).cloned() else { continue };
            let held = self.pins.held(&info.uuid, &catalogue);
            members.push(Member { name: info.name, uuid: info.uuid, catalogue, held });
        }
        members
    }
}

/// What a call says of the connection; nothing where its client did not wait for the answer.
fn end_of(result: &Result<Value, UpstreamError>) -> Option<CallEnd> {
    match result {
        Err(UpstreamError::Cancelled) => None,
        Ok(_) | Err(UpstreamError::Rpc(_) | UpstreamError::TooLarge | UpstreamError::Busy) => Some(CallEnd::Answered),
        Err(error) => Some(CallEnd::Unanswered(why_unanswered(error))),
    }
}

fn why_unanswered(error: &UpstreamError) -> NoAnswer {
    match error {
        UpstreamError::TimedOut => NoAnswer::Late,
        UpstreamError::Refused(_) | UpstreamError::Denied { .. } => NoAnswer::Barred,
        _ => NoAnswer::Lost,
    }
}

fn outcome_of(result: &Result<Value, UpstreamError>) -> &'static str {
    match result {
        Ok(result) if result["isError"] == true => "tool_error",
        Ok(_) => "ok",
        Err(UpstreamError::Rpc(_)) => "error",
        Err(UpstreamError::Cancelled) => "cancelled",
        Err(UpstreamError::TimedOut) => "timed_out",
        Err(_) => "lost",
    }
}

/// The start of a name that a caller chose.
fn short(name: &str) -> String {
    name.chars().take(128).collect()
}

fn not_there(missing: &LinkMissing) -> RpcError {
    let failure = Failure::new(FailureKind::Connection, missing.to_string()).with("server", missing.server.clone());
    let failure = match missing.phase {
        Some(phase) => failure.with("phase", phase.name()),
        None => failure,
    };
    let failure = missing.hints.iter().fold(failure, |failure, hint| failure.hint(hint.clone()));
    failure::render(failure.hint("it was not called; `ringfence server show` on the host says more"))
}

/// What a server answered is passed on as it is; what became of a call that it did not answer is told.
fn unanswered(server: &str, error: UpstreamError, deadline: Duration) -> RpcError {
    let is_late = matches!(error, UpstreamError::TimedOut);
    let (message, may_have_run) = match error {
        UpstreamError::Rpc(error) => return error,
        UpstreamError::Cancelled => return RpcError::new(RpcError::INTERNAL_ERROR, "the call was cancelled"),
        UpstreamError::Closed { may_have_run, why } => (why, may_have_run),
        UpstreamError::TimedOut => (format!("it did not answer within {} s", deadline.as_secs()), true),
        UpstreamError::TooLarge | UpstreamError::Busy => ("its answer is too large".to_owned(), true),
        error => (error.to_string(), false),
    };
    let ran = if may_have_run { "the call may have run" } else { "the call has not run" };
    let failure =
        Failure::new(FailureKind::Connection, format!("server {server} failed in the call: {message}; {ran}"))
            .with("server", server)
            .with("phase", "tool_call")
            .with("may_have_run", may_have_run.to_string());
    let failure = if is_late { failure.with("rule", "server.request_timeout_s") } else { failure };
    let advice = if may_have_run { "look whether it has had an effect before you call again" } else { "call again" };
    failure::render(failure.hint(advice))
}
