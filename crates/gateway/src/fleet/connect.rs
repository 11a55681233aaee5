//! What the fleet needs of a server: a way to connect it, and a link that can be watched and stopped.

use ringfence_core::sync::Mutex;
use std::sync::Arc;

use ringfence_entries::{ServerEntry, Transport};
use ringfence_servers::Phase;
use serde::Serialize;
use serde_json::Value;

/// Connects servers. A future that is dropped must leave nothing behind.
pub(crate) trait Connect: Send + Sync + 'static {
    type Link: Link;

    /// One attempt. It tells how far it has come, for the case that it is given up.
    fn connect(
        &self,
        entry: &ServerEntry,
        stage: &Stage,
    ) -> impl Future<Output = Result<Self::Link, ConnectFailure>> + Send;
}

/// A server that is connected. Dropped, all it had is freed.
pub(crate) trait Link: Send + Sync + 'static {
    /// Resolves when the server has crashed or closed the connection.
    fn ended(&self) -> impl Future<Output = LinkEnd> + Send;
    /// Whether nothing was heard since the last look, so that it must be probed.
    fn is_silent(&self) -> bool;
    fn probe(&self) -> impl Future<Output = bool> + Send;
    /// 5 s for a clean end, then everything is killed.
    fn stop(self: Arc<Self>) -> impl Future<Output = ()> + Send;
    fn tool_count(&self) -> usize;
    fn tools(&self) -> Vec<ToolSummary>;
    fn stderr_tail(&self) -> Vec<String>;
    fn sandbox_id(&self) -> Option<String>;
    fn usage(&self) -> Value;
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct ToolSummary {
    pub(crate) name: String,
    pub(crate) description: Option<String>,
}

/// Why an attempt failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConnectFailure {
    pub(crate) phase: Phase,
    pub(crate) message: String,
    pub(crate) hints: Vec<String>,
    /// Whether another attempt may go better.
    pub(crate) is_transient: bool,
    /// The last lines that it wrote, if it came so far.
    pub(crate) stderr: Vec<String>,
}

impl ConnectFailure {
    pub(crate) fn new(phase: Phase, message: impl Into<String>) -> Self {
        Self { phase, message: message.into(), hints: Vec::new(), is_transient: true, stderr: Vec::new() }
    }
}

/// How a connection ended that nobody stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LinkEnd {
    pub(crate) message: String,
    pub(crate) hints: Vec<String>,
}

/// How far an attempt has come. Cheap to clone; all clones are one.
#[derive(Debug, Clone)]
pub(crate) struct Stage(Arc<Mutex<Phase>>);

impl Stage {
    pub(super) fn initial(entry: &ServerEntry) -> Self {
        let phase =
            if matches!(entry.transport, Transport::Stdio(_)) { Phase::SessionCreate } else { Phase::RelayConnect };
        Self(Arc::new(Mutex::new(phase)))
    }

    pub(crate) fn reached(&self, phase: Phase) {
        *self.0.lock() = phase;
    }

    pub(crate) fn phase(&self) -> Phase {
        *self.0.lock()
    }
}
