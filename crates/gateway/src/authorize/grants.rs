//! The servers that code in each session may call: those that a call has named, for as long as the session lives.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use ringfence_core::SessionId;
use ringfence_core::sync::{Mutex, RwLock};
use ringfence_store::{Store, StoreError};

/// Number of sessions above which ended ones are removed.
const CLEANUP_THRESHOLD: usize = 256;

pub(crate) struct Grants {
    store: Store,
    sessions: Mutex<HashMap<SessionId, SessionGrants>>,
}

/// The servers of one session, by uuid. Clones share their state: a grant applies to code that is already running.
#[derive(Debug, Clone, Default)]
pub(crate) struct SessionGrants(Arc<RwLock<BTreeSet<String>>>);

impl SessionGrants {
    pub(crate) fn contains(&self, server: &str) -> bool {
        self.0.read().contains(server)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.read().is_empty()
    }

    fn extend(&self, servers: impl IntoIterator<Item = String>) {
        self.0.write().extend(servers);
    }
}

impl Grants {
    pub(crate) fn new(store: Store) -> Self {
        Self { store, sessions: Mutex::default() }
    }

    /// Returns the grants of a session, which may have been adopted from a server that died.
    pub(crate) async fn of_session(
        &self,
        session: &SessionId,
        is_live: impl Fn(&SessionId) -> bool,
    ) -> Result<SessionGrants, StoreError> {
        if let Some(grants) = self.sessions.lock().get(session) {
            return Ok(grants.clone());
        }
        let stored = Box::pin(self.store.granted(session)).await?;
        let mut sessions = self.sessions.lock();
        if sessions.len() >= CLEANUP_THRESHOLD {
            sessions.retain(|session, _| is_live(session));
        }
        let grants = sessions.entry(session.clone()).or_default().clone();
        grants.extend(stored);
        Ok(grants)
    }

    /// Grants servers to a session. They are stored before they apply.
    pub(crate) async fn add(
        &self,
        session: &SessionId,
        grants: &SessionGrants,
        servers: Vec<String>,
    ) -> Result<(), StoreError> {
        let new: Vec<String> = servers.into_iter().filter(|server| !grants.contains(server)).collect();
        if !new.is_empty() {
            self.store.grant(session, &new).await?;
            grants.extend(new);
        }
        Ok(())
    }
}
