//! Code mode: code in a session calls the tools of servers, and is answered by the host.
//!
//! Whatever the code says is a request, and decided upon here each time: which servers the session was granted, what the
//! profile offers, what a person has accepted. `cell` answers one piece of code while it runs, `grants` knows what each
//! session may call, `homes` which session `run_python` uses.

mod cell;
mod failure;
mod grants;
mod homes;
mod keeping;
mod places;
mod preface;
mod requests;
mod run;
mod search;
mod tool_call;

use std::sync::Arc;

use ringfence_config::CodeSettings;
use ringfence_core::Language;
use ringfence_core::{Principal, SessionId};
use ringfence_entries::Profile;
use ringfence_session::Sessions;
use ringfence_store::Audit;
use ringfence_store::Store;
use tokio_util::task::TaskTracker;

pub(crate) use failure::ErrorKind;
pub(crate) use search::Found;

use grants::Grants;
use homes::Homes;
use places::Places;
use preface::Prefaces;

use crate::hosting::Hosting;
use crate::policy::Policy;

/// What code can use, for models to read.
pub(crate) const CAPABILITIES: &str = include_str!("code/capabilities.md");

/// How long what code has asked may take to end with the server.
const LAST_ANSWERS: std::time::Duration = std::time::Duration::from_secs(2);

/// Cheap to clone; all clones are one.
#[derive(Clone)]
pub(crate) struct CodeMode(Arc<Inner>);

struct Inner {
    hosting: Hosting,
    sessions: Sessions,
    settings: CodeSettings,
    grants: Grants,
    homes: Homes,
    places: Places,
    prefaces: Prefaces,
    tasks: TaskTracker,
}

/// Who runs code, and what is offered to them.
#[derive(Clone)]
pub(crate) struct Caller {
    pub(crate) principal: Principal,
    pub(crate) profile: Arc<Profile>,
    pub(crate) profile_name: Arc<str>,
    pub(crate) policy: Policy,
}

/// Where code runs.
#[derive(Clone)]
struct Room {
    /// Not known of one that is made for the call.
    session: Option<SessionId>,
    language: Language,
}

impl CodeMode {
    pub(crate) fn new(hosting: Hosting, sessions: Sessions, settings: CodeSettings) -> Self {
        let store = hosting.store().clone();
        Self(Arc::new(Inner {
            places: Places::new(settings.calls_per_server),
            grants: Grants::new(store.clone()),
            homes: Homes::new(store),
            prefaces: Prefaces::default(),
            tasks: TaskTracker::new(),
            hosting,
            sessions,
            settings,
        }))
    }

    pub(crate) fn settings(&self) -> &CodeSettings {
        &self.0.settings
    }

    /// Waits a little for what code has asked; the sessions have ended, so nobody waits for the answers.
    pub(crate) async fn end(&self) {
        self.0.tasks.close();
        let _ = tokio::time::timeout(LAST_ANSWERS, self.0.tasks.wait()).await;
    }

    fn store(&self) -> &Store {
        self.0.hosting.store()
    }

    fn audit(&self) -> &Audit {
        self.0.sessions.audit()
    }
}
