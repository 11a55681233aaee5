//! The session in which `run_python` runs the code of a caller: one for each caller and profile. After a crash, a new
//! server process finds it again.

use std::collections::HashMap;
use std::sync::Arc;

use ringfence_config::CODE_FLAVOR;
use ringfence_core::sync::Mutex;
use ringfence_core::{Failure, Kind, SessionId};
use ringfence_session::Sessions;
use ringfence_store::{Store, StoreError};
use tokio::sync::Mutex as AsyncMutex;

use super::{Caller, CodeMode, Inner};

/// Locked while the session is looked up or created.
type CallerSession = Arc<AsyncMutex<Option<SessionId>>>;

pub(super) struct CallerSessions {
    store: Store,
    /// By the names of the caller and the profile.
    sessions: Mutex<HashMap<(String, String), CallerSession>>,
}

impl CallerSessions {
    pub(super) fn new(store: Store) -> Self {
        Self { store, sessions: Mutex::default() }
    }

    fn entry(&self, caller: &Caller) -> CallerSession {
        let key = (caller.principal.name().to_owned(), caller.profile_name.to_string());
        Arc::clone(self.sessions.lock().entry(key).or_default())
    }

    /// Returns the caller's session that was adopted from a crashed server process, if there is one.
    async fn adopted(&self, caller: &Caller, sessions: &Sessions) -> Result<Option<SessionId>, StoreError> {
        let stored = self.store.code_sessions(caller.principal.name(), &caller.profile_name).await?;
        Ok(stored.into_iter().rev().find(|session| sessions.has(&caller.principal, session)))
    }
}

impl CodeMode {
    /// Returns the session of a caller, and whether it is new.
    pub(super) async fn caller_session(&self, caller: &Caller) -> Result<(SessionId, bool), Failure> {
        let Inner { caller_sessions, sessions, settings, .. } = &*self.0;
        let entry = caller_sessions.entry(caller);
        let mut current = entry.lock().await;
        if let Some(session) = current.as_ref().filter(|session| sessions.has(&caller.principal, session)) {
            return Ok((session.clone(), false));
        }
        if let Some(session) = caller_sessions.adopted(caller, sessions).await.map_err(store_failure)? {
            *current = Some(session.clone());
            return Ok((session, false));
        }
        let (template, flavor) = (Some(settings.template.clone()), Some(CODE_FLAVOR.to_owned()));
        let created = sessions.create_session(&caller.principal, template, flavor).await?;
        let session = created.session_id;
        let store = &caller_sessions.store;
        store.set_code_session(&session, caller.principal.name(), &caller.profile_name).await.map_err(store_failure)?;
        *current = Some(session.clone());
        Ok((session, true))
    }
}

/// Converts an error of the database, which is reported to the caller with an incident id only.
#[allow(clippy::needless_pass_by_value, reason = "used with map_err")]
pub(super) fn store_failure(error: StoreError) -> Failure {
    Failure::new(Kind::Internal, format!("the store failed: {error}"))
}
