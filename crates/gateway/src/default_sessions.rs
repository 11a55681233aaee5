//! The default sessions: a call that names no session runs in one of its connection.
//!
//! A connection has one default session for each template, which its first call creates. Only calls of the same
//! principal, profile and connection use it. The store records it for the next server.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use ringfence_core::sync::Mutex;
use ringfence_core::{Failure, Kind, Principal, SessionId};
use ringfence_mcp::connection::Connection;
use ringfence_session::Sessions;
use ringfence_store::{DefaultSessionOwner, Store, StoreError};
use tokio::sync::Mutex as AsyncMutex;

/// Maximum number of connections without a live session that are remembered, to tell their clients about a loss.
const MAX_REMEMBERED: usize = 1024;

/// The beginning of the stored text of connections with a name.
const NAME_PREFIX: &str = "name:";

/// The default sessions of all connections. Cheap to clone; clones share them.
#[derive(Clone, Default)]
pub(crate) struct DefaultSessions {
    /// None if default sessions end with this server.
    store: Option<Store>,
    owners: Arc<Mutex<HashMap<Owner, OwnerSessions>>>,
}

/// The caller to whom default sessions belong.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Owner {
    pub(crate) principal: Principal,
    /// The name of the profile.
    pub(crate) profile: Arc<str>,
    pub(crate) connection: Connection,
}

/// Locked while a session is looked up or created.
type OwnerSessions = Arc<AsyncMutex<State>>;

#[derive(Default)]
struct State {
    /// Whether the sessions of an earlier server were looked up.
    is_loaded: bool,
    /// By the name of the template. Also has sessions that have ended.
    sessions: BTreeMap<String, Known>,
    last_template: Option<String>,
}

struct Known {
    id: SessionId,
    origin: Origin,
}

/// Where the default session of a call comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// It has run calls of its owner before.
    Earlier,
    /// It is the first one.
    New,
    /// It is new, and the one before has ended.
    Replacement,
}

/// The template of a session that a call asks for.
#[derive(Debug, Clone)]
pub(crate) enum TemplateChoice {
    /// A full name.
    Named(String),
    /// The template of the last default session that the owner has used; without one, this template.
    LastUsed(String),
}

impl TemplateChoice {
    /// Prefers the last default session to this template.
    pub(crate) fn or_last_used(self) -> Self {
        match self {
            Self::Named(template) | Self::LastUsed(template) => Self::LastUsed(template),
        }
    }
}

/// The default session that a call asks for.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    pub(crate) template: TemplateChoice,
    /// The flavor of a new one.
    pub(crate) flavor: Option<String>,
    pub(crate) creation: Creation,
}

/// Whether a call may create its default session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Creation {
    ForCode,
    ForOtherUse,
    Refused,
}

/// The default session of a call.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    pub(crate) id: SessionId,
    pub(crate) origin: Origin,
    template: String,
}

impl DefaultSessions {
    /// Default sessions that a next server finds again.
    pub(crate) fn in_store(store: Store) -> Self {
        Self { store: Some(store), owners: Arc::default() }
    }

    /// Returns the default session of an owner, which is created if it does not exist.
    pub(crate) async fn find_or_create(
        &self,
        sessions: &Sessions,
        owner: &Owner,
        wanted: Wanted,
    ) -> Result<Found, Failure> {
        let entry = self.entry(owner, sessions);
        let mut state = entry.lock().await;
        if !state.is_loaded {
            self.load(&mut state, owner, sessions).await.map_err(store_failure)?;
        }
        let template = match wanted.template.clone() {
            TemplateChoice::Named(template) => template,
            TemplateChoice::LastUsed(default) => state.last_template.clone().unwrap_or(default),
        };
        if let Some(known) = state.sessions.get(&template)
            && sessions.has(&owner.principal, &known.id)
        {
            let found = Found { id: known.id.clone(), origin: known.origin, template: template.clone() };
            state.last_template = Some(template);
            return Ok(found);
        }
        let origin = if state.sessions.contains_key(&template) { Origin::Replacement } else { Origin::New };
        // Boxed: otherwise the future of every call would have the size of this one.
        let id = Box::pin(self.create(sessions, owner, &template, wanted)).await?;
        state.sessions.insert(template.clone(), Known { id: id.clone(), origin });
        state.last_template = Some(template.clone());
        Ok(Found { id, origin, template })
    }

    /// Records that the owner knows where the session comes from.
    pub(crate) async fn reported(&self, owner: &Owner, found: &Found) {
        if found.origin == Origin::Earlier {
            return;
        }
        let Some(entry) = self.owners.lock().get(owner).cloned() else { return };
        if let Some(known) = entry.lock().await.sessions.get_mut(&found.template).filter(|known| known.id == found.id) {
            known.origin = Origin::Earlier;
        }
    }

    /// Forgets the default sessions of a connection, which become ordinary sessions.
    pub(crate) async fn forget(&self, principal: &Principal, connection: &Connection) {
        let is_of_connection = |owner: &Owner| owner.principal == *principal && owner.connection == *connection;
        self.owners.lock().retain(|owner, _| !is_of_connection(owner));
        if let (Some(store), Some(connection)) = (&self.store, stored_connection(connection))
            && let Err(error) = store.remove_default_sessions(principal.name(), &connection).await
        {
            tracing::warn!("the default sessions of an ended connection remain in the store: {error}");
        }
    }

    /// The default sessions of connections with a name, including adopted ones that no call has used in this server.
    pub(crate) async fn of_named_connections(&self) -> Vec<SessionId> {
        let Some(store) = &self.store else { return Vec::new() };
        store.default_sessions_of_connections(NAME_PREFIX).await.unwrap_or_else(|error| {
            tracing::warn!("the default sessions end with this server, because they cannot be read: {error}");
            Vec::new()
        })
    }

    fn entry(&self, owner: &Owner, sessions: &Sessions) -> OwnerSessions {
        let mut owners = self.owners.lock();
        if owners.len() >= MAX_REMEMBERED && !owners.contains_key(owner) {
            // What remains has live sessions or running calls, whose numbers are limited elsewhere.
            owners.retain(|_, entry| is_in_use(entry, sessions));
        }
        Arc::clone(owners.entry(owner.clone()).or_default())
    }

    /// Finds the sessions that were adopted from an earlier server.
    async fn load(&self, state: &mut State, owner: &Owner, sessions: &Sessions) -> Result<(), StoreError> {
        if let (Some(store), Some(stored)) = (&self.store, stored_owner(owner)) {
            for record in store.default_sessions(stored).await? {
                if sessions.has(&owner.principal, &record.session) {
                    state.last_template = Some(record.template.clone());
                    state.sessions.insert(record.template, Known { id: record.session, origin: Origin::Earlier });
                }
            }
        }
        state.is_loaded = true;
        Ok(())
    }

    async fn create(
        &self,
        sessions: &Sessions,
        owner: &Owner,
        template: &str,
        Wanted { flavor, creation, .. }: Wanted,
    ) -> Result<SessionId, Failure> {
        let (principal, template) = (&owner.principal, Some(template.to_owned()));
        let id = match creation {
            Creation::ForCode => sessions.create_session_for_code(principal, template, flavor).await?,
            Creation::ForOtherUse => sessions.create_session(principal, template, flavor).await?.session_id,
            Creation::Refused => return Err(no_session_yet()),
        };
        if let (Some(store), Some(stored)) = (&self.store, stored_owner(owner))
            && let Err(error) = store.set_default_session(&id, stored).await
        {
            let _ = sessions.stop(principal, &id).await;
            return Err(store_failure(error));
        }
        Ok(id)
    }
}

fn is_in_use(entry: &OwnerSessions, sessions: &Sessions) -> bool {
    let is_live = |state: &State| state.sessions.values().any(|known| sessions.is_live(&known.id));
    Arc::strong_count(entry) > 1 || entry.try_lock().is_ok_and(|state| is_live(&state))
}

fn stored_owner(owner: &Owner) -> Option<DefaultSessionOwner> {
    Some(DefaultSessionOwner {
        principal: owner.principal.name().to_owned(),
        profile: owner.profile.to_string(),
        connection: stored_connection(&owner.connection)?,
    })
}

/// The text by which the next server recognizes a connection. Standard input and output end with this one.
fn stored_connection(connection: &Connection) -> Option<String> {
    match connection {
        Connection::Stdio => None,
        Connection::McpSession(id) => Some(format!("mcp:{id}")),
        Connection::Named(name) => Some(format!("{NAME_PREFIX}{name}")),
    }
}

fn no_session_yet() -> Failure {
    Failure::new(
        Kind::Validation,
        "this connection has no default session, and this server may not create one for files",
    )
    .with("field", "session_id")
    .hint("run code or a command first, or send the session_id of an existing session")
}

/// Converts an error of the database, which is reported to the caller with an incident id only.
#[allow(clippy::needless_pass_by_value, reason = "used with map_err")]
fn store_failure(error: StoreError) -> Failure {
    Failure::new(Kind::Internal, format!("the store failed: {error}"))
}
