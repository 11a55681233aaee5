//! From a server's entry to a conversation with it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use ringfence_entries::{ServerEntry, Transport, expand};
use ringfence_servers::{Host, Hosted, Phase, Progress, StartFailure};
use serde_json::{Value, json};
use tokio::sync::{OnceCell, mpsc};
use tokio_util::task::AbortOnDropHandle;

use super::catalogue::{Catalogue, Kind};
use super::link::{Legacy, ServerLink, lock};
use super::pins::Pins;
use crate::fleet::{Connect, ConnectFailure, Stage};
use crate::upstream::{ClientIdentity, ConnectOptions, Eras, Incoming, Upstream, UpstreamError, Wire};

/// What servers may say unasked before it is heard; more is dropped.
const UNHEARD: usize = 64;

/// The fleet has a deadline of its own for all of it, which is shorter.
const LONGEST: Duration = Duration::from_secs(3600);

/// Something that a server has said unasked.
pub(crate) enum Said {
    /// A part of its catalogue is another, and has been read anew.
    Changed(Kind),
    Other(Incoming),
}

/// Connects servers, and hands on what they say unasked.
pub(crate) struct Connector {
    host: Host,
    pins: Arc<Pins>,
    said: mpsc::Sender<Said>,
}

impl Connector {
    pub(crate) fn new(host: Host, pins: Arc<Pins>, said: mpsc::Sender<Said>) -> Self {
        Self { host, pins, said }
    }

    /// A wire to the server, and its process if it is started for it.
    async fn reach(&self, entry: &ServerEntry, stage: &Stage) -> Result<(Wire, Option<Hosted>), ConnectFailure> {
        match &entry.transport {
            Transport::Stdio(_) => {
                let told = stage.clone();
                let progress = Progress::new(move |phase, _| told.reached(phase));
                let mut hosted = self.host.start(entry, &progress).await.map_err(failed)?;
                let streams = hosted.take_streams();
                let (input, output) =
                    streams.ok_or_else(|| ConnectFailure::new(Phase::RelayConnect, "the process has no streams"))?;
                stage.reached(Phase::McpInit);
                Ok((Wire::Lines(Box::new(output), Box::new(input)), Some(hosted)))
            }
            reach => {
                let nowhere = || ConnectFailure::new(Phase::RelayConnect, "it is not elsewhere");
                Ok((remote_wire(reach).ok_or_else(nowhere)?, None))
            }
        }
    }

    async fn talk(&self, entry: &ServerEntry, stage: &Stage, eras: Eras) -> Result<ServerLink, Attempt> {
        let (wire, hosted) = self.reach(entry, stage).await.map_err(Attempt::Failed)?;
        let (unrelated, unheard) = mpsc::channel(UNHEARD);
        let for_legacy = unrelated.clone();
        let options = ConnectOptions { deadline: LONGEST, eras };
        let upstream = match Upstream::connect_with(wire, identity(), unrelated, options).await {
            Ok(upstream) => upstream,
            Err(UpstreamError::EndedInProbe(_)) if eras == Eras::Auto => return Err(Attempt::AgainAsLegacy),
            Err(error) => {
                let stderr = hosted.as_ref().map(Hosted::stderr_tail).unwrap_or_default();
                let mut failure = refused(&error, hosted.is_none());
                if let Some(hosted) = hosted
                    && let Ok(ended) = tokio::time::timeout(Duration::from_millis(200), hosted.ended()).await
                {
                    failure.phase = Phase::ProcessStart;
                    failure.message = format!("it ended before it spoke: {ended}");
                }
                failure.hints.extend(stderr.last().map(|line| format!("it said last: {line}")));
                return Err(Attempt::Failed(ConnectFailure { stderr, ..failure }));
            }
        };
        stage.reached(Phase::McpInit);
        let catalogue = Catalogue::read(&upstream).await.map_err(|error| {
            let message = format!("its lists cannot be read: {error}");
            Attempt::Failed(ConnectFailure::new(Phase::McpInit, message))
        })?;
        // Before anybody can call it: as long as it is not known what was accepted, all is held back.
        self.pins.meet(&entry.uuid, &catalogue).await.map_err(|error| {
            let message = format!("its pins cannot be read or written: {error}");
            Attempt::Failed(ConnectFailure::new(Phase::McpInit, message))
        })?;
        let catalogue = Arc::new(Mutex::new(Arc::new(catalogue)));
        let listener = listen(upstream.clone(), Arc::clone(&catalogue), unheard, self.said.clone());
        let listener = AbortOnDropHandle::new(tokio::spawn(listener));
        let again = entry.transport.clone();
        let legacy = (hosted.is_none() && upstream.era().is_modern()).then(|| Legacy {
            wire: Box::new(move || remote_wire(&again)),
            unrelated: for_legacy,
            conversation: OnceCell::new(),
        });
        Ok(ServerLink::new(upstream, hosted, catalogue, listener, legacy))
    }
}

/// What leads to a server that is not started here.
fn remote_wire(transport: &Transport) -> Option<Wire> {
    Some(match transport {
        Transport::Stdio(_) => return None,
        Transport::Http(remote) => Wire::Http(remote.clone()),
        Transport::Sse(remote) => Wire::Sse(remote.clone()),
        Transport::Websocket(remote) => Wire::Websocket(remote.clone()),
        Transport::Remote(remote) => Wire::Remote(remote.clone()),
    })
}

enum Attempt {
    Failed(ConnectFailure),
    /// It died of a question that only newer servers know.
    AgainAsLegacy,
}

impl Connect for Connector {
    type Link = ServerLink;

    async fn connect(&self, entry: &ServerEntry, stage: &Stage) -> Result<ServerLink, ConnectFailure> {
        let entry = expand(entry, &|name| std::env::var(name).ok()).map_err(|error| {
            let failure = ConnectFailure::new(Phase::ProcessStart, error.to_string());
            ConnectFailure { is_transient: false, ..failure }
        })?;
        match self.talk(&entry, stage, Eras::Auto).await {
            Err(Attempt::AgainAsLegacy) => self.talk(&entry, stage, Eras::LegacyOnly).await,
            other => other,
        }
        .map_err(|attempt| match attempt {
            Attempt::Failed(failure) => failure,
            Attempt::AgainAsLegacy => ConnectFailure::new(Phase::McpInit, "it ended when it was spoken to"),
        })
    }
}

/// Hears what the server says unasked; what of its catalogue has changed is read anew before it is told.
async fn listen(
    upstream: Upstream,
    catalogue: Arc<Mutex<Arc<Catalogue>>>,
    mut unheard: mpsc::Receiver<Incoming>,
    said: mpsc::Sender<Said>,
) {
    while let Some(incoming) = unheard.recv().await {
        let changed = match &incoming {
            Incoming::Notification { method, .. } => Kind::ALL.into_iter().find(|kind| kind.notification() == method),
            Incoming::Request { .. } => None,
        };
        let what = match changed {
            None => Said::Other(incoming),
            Some(kind) => {
                let mut fresh = Catalogue::clone(&lock(&catalogue));
                // One that cannot be read stays as it was; the server's health is looked after elsewhere.
                if fresh.refresh(&upstream, kind).await.is_err() {
                    continue;
                }
                *lock(&catalogue) = Arc::new(fresh);
                Said::Changed(kind)
            }
        };
        if said.send(what).await.is_err() {
            return;
        }
    }
}

/// Clients differ in what they can do; a question that the one concerned cannot answer is refused then.
pub(super) fn identity() -> ClientIdentity {
    let capabilities: Value = json!({"elicitation": {"form": {}, "url": {}}, "sampling": {"tools": {}, "context": {}}, "roots": {"listChanged": true}});
    ClientIdentity { name: "ringfence".into(), version: env!("CARGO_PKG_VERSION").into(), capabilities }
}

fn failed(failure: StartFailure) -> ConnectFailure {
    let StartFailure { phase, message, hints, is_transient } = failure;
    ConnectFailure { phase, message, hints, is_transient, stderr: Vec::new() }
}

fn refused(error: &UpstreamError, is_remote: bool) -> ConnectFailure {
    let phase = match error {
        UpstreamError::Rpc(_) | UpstreamError::TimedOut => Phase::McpInit,
        _ if is_remote => Phase::RelayConnect,
        _ => Phase::McpInit,
    };
    ConnectFailure::new(phase, error.to_string())
}
