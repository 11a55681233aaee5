//! A server that is connected: its process, if it is one of ours, the conversation with it, and what it offers.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ringfence_servers::Hosted;
use serde_json::{Value, json};
use tokio::sync::{OnceCell, mpsc};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::catalogue::{Catalogue, name_of};
use super::connect::identity;
use crate::era::Era;
use crate::fleet::{Link, LinkEnd, ToolSummary};
use crate::upstream::{ConnectOptions, Eras, Incoming, Upstream, Wire};

/// How long a server may take to answer a probe.
const PROBE_PATIENCE: Duration = Duration::from_secs(5);

/// How often it is tried to stop a server that is being looked at; dropped, it is killed after all.
const LOOKS: usize = 200;

pub(crate) struct ServerLink {
    pub(crate) upstream: Upstream,
    /// To a server elsewhere that speaks the modern era: how to speak the legacy one with it, for clients of that.
    legacy: Option<Legacy>,
    hosted: Mutex<Option<Arc<Hosted>>>,
    catalogue: Arc<Mutex<Arc<Catalogue>>>,
    looked: Mutex<Instant>,
    /// Hears what the server says unasked; ends with the link.
    _listener: AbortOnDropHandle<()>,
}

impl ServerLink {
    pub(super) fn new(
        upstream: Upstream,
        hosted: Option<Hosted>,
        catalogue: Arc<Mutex<Arc<Catalogue>>>,
        listener: AbortOnDropHandle<()>,
        legacy: Option<Legacy>,
    ) -> Self {
        let hosted = Mutex::new(hosted.map(Arc::new));
        Self { upstream, legacy, hosted, catalogue, looked: Mutex::new(Instant::now()), _listener: listener }
    }

    /// The conversation for a client of an era: in the same one, where the server can be spoken to in both.
    pub(crate) async fn upstream_for(&self, era: Era) -> &Upstream {
        match (&self.legacy, era) {
            (Some(legacy), Era::Legacy) => legacy.open().await.unwrap_or(&self.upstream),
            _ => &self.upstream,
        }
    }

    pub(crate) fn catalogue(&self) -> Arc<Catalogue> {
        Arc::clone(&lock(&self.catalogue))
    }

    fn hosted(&self) -> Option<Arc<Hosted>> {
        lock(&self.hosted).clone()
    }
}

/// A second conversation with a server, opened when it is first needed.
pub(super) struct Legacy {
    pub(super) wire: RemoteWire,
    pub(super) unrelated: mpsc::Sender<Incoming>,
    pub(super) conversation: OnceCell<Option<Upstream>>,
}

/// What leads to a server elsewhere can be opened again.
pub(super) type RemoteWire = Box<dyn Fn() -> Option<Wire> + Send + Sync>;

impl Legacy {
    async fn open(&self) -> Option<&Upstream> {
        let opened = self.conversation.get_or_init(|| async {
            let options = ConnectOptions { deadline: PROBE_PATIENCE, eras: Eras::LegacyOnly };
            Upstream::connect_with((self.wire)()?, identity(), self.unrelated.clone(), options).await.ok()
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
            ended = hosted.ended() => ended.to_string(),
            reason = self.upstream.ended() => {
                // A process that ends closes its streams first; how it ended says more.
                match tokio::time::timeout(Duration::from_millis(500), hosted.ended()).await {
                    Ok(ended) => ended.to_string(),
                    Err(_) => reason.to_string(),
                }
            }
        };
        LinkEnd { message, hints: vec!["`ringfence server logs` shows what it said last".into()] }
    }

    fn is_silent(&self) -> bool {
        let heard = self.upstream.last_heard();
        let looked = std::mem::replace(&mut *lock(&self.looked), Instant::now());
        heard < looked
    }

    async fn probe(&self) -> bool {
        self.upstream.ping(PROBE_PATIENCE).await
    }

    async fn stop(self: Arc<Self>) {
        if let Some(Some(legacy)) = self.legacy.as_ref().and_then(|legacy| legacy.conversation.get()) {
            legacy.close().await;
        }
        self.upstream.close().await;
        let Some(mut hosted) = lock(&self.hosted).take() else { return };
        // Somebody may look at it just now; no look takes long, and no new one begins.
        for _ in 0..LOOKS {
            match Arc::try_unwrap(hosted) {
                Ok(hosted) => return hosted.stop().await,
                Err(shared) => hosted = shared,
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
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

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
