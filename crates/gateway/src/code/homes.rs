//! The session in which `run_python` runs a caller's code: one for each caller and profile, found again as long as it
//! lives, also by a server that was started after a crash.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use ringfence_config::CODE_FLAVOR;
use ringfence_core::{Failure, Kind, SessionId};
use ringfence_session::Sessions;
use ringfence_store::{Store, StoreError};
use tokio::sync::Mutex as Turn;

use super::{Caller, CodeMode, Inner};

type Home = Arc<Turn<Option<SessionId>>>;

pub(super) struct Homes {
    store: Store,
    /// By the caller's name and the profile's. Whoever looks for one waits for whoever makes it.
    known: Mutex<HashMap<(String, String), Home>>,
}

impl Homes {
    pub(super) fn new(store: Store) -> Self {
        Self { store, known: Mutex::default() }
    }

    fn turn(&self, caller: &Caller) -> Home {
        let key = (caller.principal.name().to_owned(), caller.profile_name.to_string());
        Arc::clone(self.known.lock().unwrap_or_else(PoisonError::into_inner).entry(key).or_default())
    }

    /// One that was left by a server that died, and has been taken over.
    async fn inherited(&self, caller: &Caller, sessions: &Sessions) -> Result<Option<SessionId>, StoreError> {
        let left = self.store.code_sessions(caller.principal.name(), &caller.profile_name).await?;
        Ok(left.into_iter().rev().find(|session| sessions.has(&caller.principal, session)))
    }
}

impl CodeMode {
    /// The caller's session, and whether it is a new one.
    pub(super) async fn home(&self, caller: &Caller) -> Result<(SessionId, bool), Failure> {
        let Inner { homes, sessions, settings, .. } = &*self.0;
        let turn = homes.turn(caller);
        let mut home = turn.lock().await;
        if let Some(session) = home.as_ref().filter(|session| sessions.has(&caller.principal, session)) {
            return Ok((session.clone(), false));
        }
        if let Some(session) = homes.inherited(caller, sessions).await.map_err(unkept)? {
            *home = Some(session.clone());
            return Ok((session, false));
        }
        let (template, flavor) = (Some(settings.template.clone()), Some(CODE_FLAVOR.to_owned()));
        let made = sessions.create_session(&caller.principal, template, flavor).await?;
        let session = made.session_id;
        homes.store.set_code_session(&session, caller.principal.name(), &caller.profile_name).await.map_err(unkept)?;
        *home = Some(session.clone());
        Ok((session, true))
    }
}

/// The host's own trouble, told under an incident id.
#[allow(clippy::needless_pass_by_value)] // so that it can be mapped with
pub(super) fn unkept(error: StoreError) -> Failure {
    Failure::new(Kind::Internal, format!("the store failed: {error}"))
}
