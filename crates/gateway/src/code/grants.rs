//! Which servers each session may call: those that were named for it, once and for as long as it lives.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use ringfence_core::SessionId;
use ringfence_session::Sessions;
use ringfence_store::{Store, StoreError};

/// From this many on, sessions that have ended are looked for and forgotten.
const MANY: usize = 256;

pub(super) struct Grants {
    store: Store,
    known: Mutex<HashMap<SessionId, Granted>>,
}

/// The servers of one session, by uuid. All clones are one: what is granted while code runs holds for it too.
#[derive(Debug, Clone, Default)]
pub(super) struct Granted(Arc<RwLock<BTreeSet<String>>>);

impl Granted {
    pub(super) fn has(&self, server: &str) -> bool {
        self.0.read().unwrap_or_else(PoisonError::into_inner).contains(server)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.read().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    fn add(&self, servers: impl IntoIterator<Item = String>) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).extend(servers);
    }
}

impl Grants {
    pub(super) fn new(store: Store) -> Self {
        Self { store, known: Mutex::default() }
    }

    /// What a session may call, also one that was taken over from a server that died.
    pub(super) async fn of(&self, session: &SessionId, sessions: &Sessions) -> Result<Granted, StoreError> {
        if let Some(granted) = self.known().get(session) {
            return Ok(granted.clone());
        }
        let stored = Box::pin(self.store.granted(session)).await?;
        let mut known = self.known();
        if known.len() >= MANY {
            known.retain(|session, _| sessions.is_live(session));
        }
        let granted = known.entry(session.clone()).or_default().clone();
        granted.add(stored);
        Ok(granted)
    }

    /// Lets a session call more servers; it is written down before it holds.
    pub(super) async fn add(
        &self,
        session: &SessionId,
        granted: &Granted,
        servers: Vec<String>,
    ) -> Result<(), StoreError> {
        let new: Vec<String> = servers.into_iter().filter(|server| !granted.has(server)).collect();
        if !new.is_empty() {
            self.store.grant(session, &new).await?;
            granted.add(new);
        }
        Ok(())
    }

    fn known(&self) -> std::sync::MutexGuard<'_, HashMap<SessionId, Granted>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
