//! Connects one server: starts its process or opens a connection, performs the handshake, and reads its catalogue.

use std::sync::Arc;
use std::time::Duration;

use ringfence_core::sync::Mutex;
use ringfence_entries::{RemoteSettings, ServerEntry, Transport, expand};
use ringfence_mcp::upstream::{
    ClientIdentity, ConnectOptions, Eras, Incoming, RemoteTarget, Target, Upstream, UpstreamError,
};
use ringfence_servers::{Host, HostedServer, Phase, Progress, StartFailure};
use serde_json::{Value, json};
use tokio::sync::{OnceCell, mpsc};
use tokio_util::task::AbortOnDropHandle;

use super::link::{LegacyConnection, ServerLink};
use crate::authorize::Pins;
use crate::catalogue::{Catalogue, ListKind};
use crate::fleet::{Connect, ConnectFailure, Stage};

/// Maximum number of unread messages of a server that belong to no request; further ones are dropped.
const MAX_UNREAD_MESSAGES: usize = 64;

/// Upper bound for a handshake. The fleet has a shorter deadline for the whole start.
const MAX_HANDSHAKE: Duration = Duration::from_hours(1);

/// Time to wait for the exit status of a process that failed the handshake.
const EXIT_STATUS_TIMEOUT: Duration = Duration::from_millis(200);

/// A message of a server that belongs to no request.
pub(crate) enum ServerMessage {
    /// A list of the server has changed, and was read again.
    ListChanged(ListKind),
    Other(Incoming),
}

/// Connects servers, and forwards their messages that belong to no request.
pub(crate) struct Connector {
    host: Host,
    pins: Arc<Pins>,
    messages: mpsc::Sender<ServerMessage>,
}

impl Connector {
    pub(crate) fn new(host: Host, pins: Arc<Pins>, messages: mpsc::Sender<ServerMessage>) -> Self {
        Self { host, pins, messages }
    }

    /// Returns the target to connect to, and the process of the server if one was started.
    async fn open(&self, entry: &ServerEntry, stage: &Stage) -> Result<(Target, Option<HostedServer>), ConnectFailure> {
        match &entry.transport {
            Transport::Stdio(_) => {
                let reporter = stage.clone();
                let progress = Progress::new(move |phase, _| reporter.reached(phase));
                let mut hosted = self.host.start(entry, &progress).await.map_err(start_failure)?;
                let streams = hosted.take_streams();
                let (input, output) =
                    streams.ok_or_else(|| ConnectFailure::new(Phase::RelayConnect, "the process has no streams"))?;
                stage.reached(Phase::McpInit);
                Ok((Target::Stdio(Box::new(output), Box::new(input)), Some(hosted)))
            }
            transport => {
                let no_url = || ConnectFailure::new(Phase::RelayConnect, "the entry has no URL");
                Ok((remote_target(transport).ok_or_else(no_url)?, None))
            }
        }
    }

    async fn attempt(&self, entry: &ServerEntry, stage: &Stage, eras: Eras) -> Result<ServerLink, AttemptError> {
        let (target, hosted) = self.open(entry, stage).await.map_err(AttemptError::Failed)?;
        let (sender, received) = mpsc::channel(MAX_UNREAD_MESSAGES);
        let legacy_sender = sender.clone();
        let options = ConnectOptions { timeout: MAX_HANDSHAKE, eras };
        let upstream = match Upstream::connect(target, identity(), sender, options).await {
            Ok(upstream) => upstream,
            Err(UpstreamError::ClosedDuringProbe(_)) if eras == Eras::Auto => return Err(AttemptError::RetryAsLegacy),
            Err(error) => return Err(AttemptError::Failed(handshake_failure(&error, hosted).await)),
        };
        stage.reached(Phase::McpInit);
        let catalogue = Catalogue::read(&upstream).await.map_err(|error| {
            let message = format!("cannot read the lists of the server: {error}");
            AttemptError::Failed(ConnectFailure::new(Phase::McpInit, message))
        })?;
        // Before the server can be called: everything is withheld until its pins are loaded.
        self.pins.on_connect(&entry.uuid, &catalogue).await.map_err(|error| {
            let message = format!("cannot load or save the pins of the server: {error}");
            AttemptError::Failed(ConnectFailure::new(Phase::McpInit, message))
        })?;
        let catalogue = Arc::new(Mutex::new(Arc::new(catalogue)));
        let listener = listen(upstream.clone(), Arc::clone(&catalogue), received, self.messages.clone());
        let listener = AbortOnDropHandle::new(tokio::spawn(listener));
        let transport = entry.transport.clone();
        let legacy = (hosted.is_none() && upstream.era().is_modern()).then(|| LegacyConnection {
            connect: Box::new(move || remote_target(&transport)),
            messages: legacy_sender,
            upstream: OnceCell::new(),
        });
        Ok(ServerLink::new(upstream, hosted, catalogue, listener, legacy))
    }
}

/// Returns the target of a remote server.
fn remote_target(transport: &Transport) -> Option<Target> {
    let target = |settings: &RemoteSettings| RemoteTarget {
        url: settings.url.clone(),
        headers: settings.headers.clone(),
        timeout: settings.timeout,
        read_timeout: settings.sse_read_timeout,
    };
    Some(match transport {
        Transport::Stdio(_) => return None,
        Transport::Http(settings) => Target::Http(target(settings)),
        Transport::Sse(settings) => Target::Sse(target(settings)),
        Transport::Websocket(settings) => Target::WebSocket(target(settings)),
        Transport::Remote(settings) => Target::Remote(target(settings)),
    })
}

enum AttemptError {
    Failed(ConnectFailure),
    /// The server died of the probe for the modern era.
    RetryAsLegacy,
}

impl Connect for Connector {
    type Link = ServerLink;

    async fn connect(&self, entry: &ServerEntry, stage: &Stage) -> Result<ServerLink, ConnectFailure> {
        let entry = expand(entry, &|name| std::env::var(name).ok()).map_err(|error| {
            let failure = ConnectFailure::new(Phase::ProcessStart, error.to_string());
            ConnectFailure { is_transient: false, ..failure }
        })?;
        match self.attempt(&entry, stage, Eras::Auto).await {
            Err(AttemptError::RetryAsLegacy) => self.attempt(&entry, stage, Eras::LegacyOnly).await,
            other => other,
        }
        .map_err(|error| match error {
            AttemptError::Failed(failure) => failure,
            AttemptError::RetryAsLegacy => ConnectFailure::new(Phase::McpInit, "the server ended during the handshake"),
        })
    }
}

/// Receives the messages that belong to no request. A list that has changed is read again before the change is forwarded.
async fn listen(
    upstream: Upstream,
    catalogue: Arc<Mutex<Arc<Catalogue>>>,
    mut received: mpsc::Receiver<Incoming>,
    messages: mpsc::Sender<ServerMessage>,
) {
    while let Some(incoming) = received.recv().await {
        let changed = match &incoming {
            Incoming::Notification { method, .. } => {
                ListKind::ALL.into_iter().find(|kind| kind.notification() == method)
            }
            Incoming::Request { .. } => None,
        };
        let message = match changed {
            None => ServerMessage::Other(incoming),
            Some(kind) => {
                let mut current = Catalogue::clone(&catalogue.lock());
                // A list that cannot be read stays as it was; health probes take care of the server.
                if current.refresh(&upstream, kind).await.is_err() {
                    continue;
                }
                *catalogue.lock() = Arc::new(current);
                ServerMessage::ListChanged(kind)
            }
        };
        if messages.send(message).await.is_err() {
            return;
        }
    }
}

/// Declares everything that any client may be able to do. A request that the client of a call cannot handle is refused
/// when it arrives.
pub(super) fn identity() -> ClientIdentity {
    let capabilities: Value = json!({
        "elicitation": {"form": {}, "url": {}},
        "sampling": {"tools": {}, "context": {}},
        "roots": {"listChanged": true},
    });
    ClientIdentity { name: "ringfence".into(), version: env!("CARGO_PKG_VERSION").into(), capabilities }
}

fn start_failure(failure: StartFailure) -> ConnectFailure {
    let StartFailure { phase, message, hints, is_transient } = failure;
    ConnectFailure { phase, message, hints, is_transient, stderr: Vec::new() }
}

async fn handshake_failure(error: &UpstreamError, hosted: Option<HostedServer>) -> ConnectFailure {
    let stderr = hosted.as_ref().map(HostedServer::stderr_tail).unwrap_or_default();
    let phase = match error {
        UpstreamError::Rpc(_) | UpstreamError::TimedOut => Phase::McpInit,
        _ if hosted.is_none() => Phase::RelayConnect,
        _ => Phase::McpInit,
    };
    let mut failure = ConnectFailure::new(phase, error.to_string());
    if let Some(hosted) = hosted
        && let Ok(ended) = tokio::time::timeout(EXIT_STATUS_TIMEOUT, hosted.wait_for_exit()).await
    {
        failure.phase = Phase::ProcessStart;
        failure.message = format!("the process ended before the handshake: {ended}");
    }
    failure.hints.extend(stderr.last().map(|line| format!("last line of stderr: {line}")));
    ConnectFailure { stderr, ..failure }
}
