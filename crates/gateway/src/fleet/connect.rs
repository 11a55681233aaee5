//! The interface between the fleet and the servers: a way to connect one, and a link that can be watched and stopped.

use ringfence_core::sync::Mutex;
use std::sync::Arc;

use ringfence_entries::{ServerEntry, Transport};
use ringfence_servers::Phase;
use serde::Serialize;
use serde_json::Value;

/// Connects servers. A future that is dropped must release everything that it has started.
pub(crate) trait Connect: Send + Sync + 'static {
    type Link: Link;

    /// Makes one attempt. `stage` receives its progress, which is reported if the attempt times out.
    fn connect(
        &self,
        entry: &ServerEntry,
        stage: &Stage,
    ) -> impl Future<Output = Result<Self::Link, ConnectFailure>> + Send;
}

/// A connected server. Everything that belongs to it is released when it is dropped.
pub(crate) trait Link: Send + Sync + 'static {
    /// Resolves when the server has crashed or closed the connection.
    fn ended(&self) -> impl Future<Output = LinkEnd> + Send;
    /// Whether the server has sent nothing since the last call of this method, so that it must be probed.
    fn is_silent(&self) -> bool;
    /// Returns whether the server has responded to a probe.
    fn probe(&self) -> impl Future<Output = bool> + Send;
    /// Stops the server: it has 5 s to exit, then it is killed.
    fn stop(self: Arc<Self>) -> impl Future<Output = ()> + Send;
    fn tool_count(&self) -> usize;
    fn tools(&self) -> Vec<ToolSummary>;
    fn stderr_tail(&self) -> Vec<String>;
    /// A line for each host that the server was refused.
    fn blocked(&self) -> Vec<String>;
    fn sandbox_id(&self) -> Option<String>;
    fn usage(&self) -> Value;
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct ToolSummary {
    pub(crate) name: String,
    pub(crate) description: Option<String>,
}

/// The reason for which an attempt failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConnectFailure {
    pub(crate) phase: Phase,
    pub(crate) message: String,
    pub(crate) hints: Vec<String>,
    /// Whether another attempt may succeed.
    pub(crate) is_transient: bool,
    /// The last lines of stderr, if the process was started.
    pub(crate) stderr: Vec<String>,
}

impl ConnectFailure {
    pub(crate) fn new(phase: Phase, message: impl Into<String>) -> Self {
        Self { phase, message: message.into(), hints: Vec::new(), is_transient: true, stderr: Vec::new() }
    }
}

/// The reason for which a connection ended without being stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LinkEnd {
    pub(crate) message: String,
    pub(crate) hints: Vec<String>,
}

/// The phase that an attempt has reached. Clones share their state.
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
