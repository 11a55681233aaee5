//! A connected server: its process if this gateway hosts it, the MCP connection to it, and its catalogue.

use std::sync::Arc;
use std::time::Duration;

use ringfence_core::sync::Mutex;
use ringfence_egress::Rule;
use ringfence_mcp::era::Era;
use ringfence_mcp::upstream::{ConnectOptions, Eras, Incoming, Target, Upstream};
use ringfence_servers::HostedServer;
use serde_json::{Value, json};
use tokio::sync::{OnceCell, mpsc};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::connector::identity;
use crate::catalogue::{Catalogue, name_of};
use crate::fleet::{Link, LinkEnd, ToolSummary};

/// Maximum time for the response to a health probe.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// Time to wait for the exit status of a process whose streams have ended.
const EXIT_STATUS_TIMEOUT: Duration = Duration::from_millis(500);

/// Maximum number of attempts to stop a process while another task reads its state. After the last attempt the process
/// is killed.
const STOP_ATTEMPTS: usize = 200;
/// Pause between these attempts.
const STOP_RETRY_DELAY: Duration = Duration::from_millis(5);

/// A connected server. Dropping it kills its process and closes its connections.
pub(crate) struct ServerLink {
    pub(crate) upstream: Upstream,
    /// A second connection in the legacy era, for clients of that era. Only remote servers whose first connection is in
    /// the modern era have one.
    legacy: Option<LegacyConnection>,
    hosted: Mutex<Option<Arc<HostedServer>>>,
    catalogue: Arc<Mutex<Arc<Catalogue>>>,
    last_check: Mutex<Instant>,
    /// The task that receives the server's messages that belong to no request.
    _listener: AbortOnDropHandle<()>,
}

impl ServerLink {
    pub(super) fn new(
        upstream: Upstream,
        hosted: Option<HostedServer>,
        catalogue: Arc<Mutex<Arc<Catalogue>>>,
        listener: AbortOnDropHandle<()>,
        legacy: Option<LegacyConnection>,
    ) -> Self {
        let hosted = Mutex::new(hosted.map(Arc::new));
        let last_check = Mutex::new(Instant::now());
        Self { upstream, legacy, hosted, catalogue, last_check, _listener: listener }
    }

    /// Returns the connection for a client of an era: the one in the same era if the server supports it, else the
    /// other.
    pub(crate) async fn upstream_for(&self, era: Era) -> &Upstream {
        match (&self.legacy, era) {
            (Some(legacy), Era::Legacy) => legacy.open().await.unwrap_or(&self.upstream),
            _ => &self.upstream,
        }
    }

    pub(crate) fn catalogue(&self) -> Arc<Catalogue> {
        Arc::clone(&self.catalogue.lock())
    }

    /// Adds rules to the network of the server until it restarts, and returns all its rules. Returns `None` if the
    /// server has no sandbox.
    pub(crate) async fn allow(&self, rules: Vec<Rule>) -> Option<Vec<Rule>> {
        self.hosted()?.allow(rules).await
    }

    fn hosted(&self) -> Option<Arc<HostedServer>> {
        self.hosted.lock().clone()
    }
}

/// A connection to a remote server in the legacy era. It is opened on first use.
pub(super) struct LegacyConnection {
    pub(super) connect: RemoteConnect,
    pub(super) messages: mpsc::Sender<Incoming>,
    pub(super) upstream: OnceCell<Option<Upstream>>,
}

/// A function that returns the target for another connection to a remote server.
pub(super) type RemoteConnect = Box<dyn Fn() -> Option<Target> + Send + Sync>;

impl LegacyConnection {
    async fn open(&self) -> Option<&Upstream> {
        let opened = self.upstream.get_or_init(|| async {
            let options = ConnectOptions { timeout: PROBE_TIMEOUT, eras: Eras::LegacyOnly };
            Upstream::connect((self.connect)()?, identity(), self.messages.clone(), options).await.ok()
        });
        opened.await.as_ref()
    }
}

impl Link for ServerLink {
    async fn ended(&self) -> LinkEnd {
        let Some(hosted) = self.hosted() else {
            return LinkEnd { message: self.upstream.ended().await.to_string(), hints: Vec::new() };
        };
        let message = tokio::select! {
            biased;
            ended = hosted.wait_for_exit() => ended.to_string(),
            reason = self.upstream.ended() => {
                // A process that ends closes its streams first. Its exit status is a better error message.
                match tokio::time::timeout(EXIT_STATUS_TIMEOUT, hosted.wait_for_exit()).await {
                    Ok(ended) => ended.to_string(),
                    Err(_) => reason.to_string(),
                }
            }
        };
        LinkEnd { message, hints: vec!["see the last lines of its stderr with `ringfence server logs`".into()] }
    }

    fn is_silent(&self) -> bool {
        let last_message = self.upstream.last_activity();
        let last_check = std::mem::replace(&mut *self.last_check.lock(), Instant::now());
        last_message < last_check
    }

    async fn probe(&self) -> bool {
        self.upstream.ping(PROBE_TIMEOUT).await
    }

    async fn stop(self: Arc<Self>) {
        if let Some(Some(legacy)) = self.legacy.as_ref().and_then(|legacy| legacy.upstream.get()) {
            legacy.close().await;
        }
        self.upstream.close().await;
        let Some(mut hosted) = self.hosted.lock().take() else { return };
        // Another task may be reading the state of the process. A read is short, and no new read can start.
        for _ in 0..STOP_ATTEMPTS {
            match Arc::try_unwrap(hosted) {
                Ok(hosted) => return hosted.stop().await,
                Err(shared) => hosted = shared,
            }
            tokio::time::sleep(STOP_RETRY_DELAY).await;
        }
    }

    fn tool_count(&self) -> usize {
        self.catalogue().tools.len()
    }

    fn tools(&self) -> Vec<ToolSummary> {
        let summary = |tool: &Value| ToolSummary {
            name: name_of(tool).to_owned(),
            description: tool["description"].as_str().map(str::to_owned),
        };
        self.catalogue().tools.iter().map(summary).collect()
    }

    fn stderr_tail(&self) -> Vec<String> {
        self.hosted().map(|hosted| hosted.stderr_tail()).unwrap_or_default()
    }

    fn blocked(&self) -> Vec<String> {
        self.hosted().map(|hosted| hosted.refused_hosts()).unwrap_or_default()
    }

    fn sandbox_id(&self) -> Option<String> {
        self.hosted().map(|hosted| hosted.sandbox_id())
    }

    fn usage(&self) -> Value {
        let Some(usage) = self.hosted().map(|hosted| hosted.usage()) else { return Value::Null };
        json!({
            "memory_bytes": usage.memory_bytes,
            "memory_limit_bytes": usage.memory_limit_bytes,
            "processes": usage.processes,
        })
    }
}
