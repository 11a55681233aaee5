//! Code mode: code in a session calls the tools of servers through the host.
//!
//! The code is not trusted: `authorize` decides about each of its requests. `run` runs code, `host_calls` handles its
//! requests while it runs.

mod call_error;
mod host_calls;
mod params;
mod per_server_limit;
mod preface;
mod run;
mod saved;
mod search;
mod tool_call;

use std::sync::Arc;

use ringfence_config::CodeSettings;
use ringfence_core::Language;
use ringfence_core::{Principal, SessionId};
use ringfence_entries::Profile;
use ringfence_session::{QuestionSender, Sessions};
use ringfence_store::Store;
use tokio_util::task::TaskTracker;

pub(crate) use search::FoundTool;

use per_server_limit::PerServerLimit;
use preface::SavedTools;

use crate::authorize::{Authorizer, Grants};
use crate::hosting::Hosting;

/// A description of code mode for models, as Markdown.
pub(crate) const CAPABILITIES: &str = include_str!("code/capabilities.md");

/// Maximum time for calls of code to end at shutdown.
const SHUTDOWN_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(2);

/// Runs code that may call servers. Clones share their state.
#[derive(Clone)]
pub(crate) struct CodeMode(Arc<Inner>);

struct Inner {
    hosting: Hosting,
    sessions: Sessions,
    settings: CodeSettings,
    grants: Grants,
    per_server_limit: PerServerLimit,
    saved_tools: SavedTools,
    tasks: TaskTracker,
}

/// The caller of code mode, with its permissions.
#[derive(Clone)]
pub(crate) struct Caller {
    pub(crate) principal: Principal,
    pub(crate) profile: Arc<Profile>,
    pub(crate) authorizer: Authorizer,
    /// Handles questions about hosts while code runs.
    pub(crate) questions: Option<QuestionSender>,
}

/// The session in which code runs.
#[derive(Clone)]
struct Target {
    /// None if it is created for the call.
    session: Option<SessionId>,
    language: Language,
}

impl CodeMode {
    pub(crate) fn new(hosting: Hosting, sessions: Sessions, settings: CodeSettings) -> Self {
        let store = hosting.store().clone();
        Self(Arc::new(Inner {
            per_server_limit: PerServerLimit::new(settings.calls_per_server),
            grants: Grants::new(store.clone()),
            saved_tools: SavedTools::default(),
            tasks: TaskTracker::new(),
            hosting,
            sessions,
            settings,
        }))
    }

    pub(crate) fn settings(&self) -> &CodeSettings {
        &self.0.settings
    }

    /// Waits a limited time for tool calls of code. The sessions have ended, so the results are not needed.
    pub(crate) async fn finish_calls(&self) {
        self.0.tasks.close();
        let _ = tokio::time::timeout(SHUTDOWN_TIMEOUT, self.0.tasks.wait()).await;
    }

    fn store(&self) -> &Store {
        self.0.hosting.store()
    }
}
