//! Scripted servers, for paused time.

use std::collections::HashMap;
use std::collections::VecDeque;
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ringfence_core::sync::Mutex;
use ringfence_entries::{RemoteSettings, ServerEntry, StartPolicy, StdioSettings, Transport};
use ringfence_servers::Phase;
use ringfence_store::Audit;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::fleet::{Connect, ConnectFailure, Fleet, FleetOptions, Link, LinkEnd, ServerInfo, Stage, ToolSummary};

/// The script of one attempt.
#[derive(Clone)]
pub(super) enum StartScript {
    Succeeds(Behavior),
    /// After this time.
    SucceedsAfter(Duration, Behavior),
    Fails(ConnectFailure),
    /// Hangs after it has reached this phase.
    Hangs(Phase),
    Panics,
}

/// The behavior of a server once it is connected.
#[derive(Clone, Copy)]
pub(super) struct Behavior {
    pub(super) dies_after: Option<Duration>,
    pub(super) probe: Probe,
    pub(super) ignores_stop: bool,
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Probe {
    /// The server sends messages, so it is not probed.
    NotNeeded,
    Succeeds,
    Fails,
    Hangs,
    /// This many probes fail, the next succeeds, and so on.
    SucceedsAfter(usize),
    Panics,
}

pub(super) const HEALTHY: Behavior = Behavior { dies_after: None, probe: Probe::NotNeeded, ignores_stop: false };

pub(super) fn dies_after(seconds: u64) -> StartScript {
    StartScript::Succeeds(Behavior { dies_after: Some(Duration::from_secs(seconds)), ..HEALTHY })
}

pub(super) fn fails(phase: Phase) -> StartScript {
    StartScript::Fails(ConnectFailure::new(phase, "cannot start"))
}

#[derive(Clone)]
pub(crate) struct FakeServers(Arc<FakeServersInner>);

struct FakeServersInner {
    created: Instant,
    /// The last start of a script is repeated.
    scripts: Mutex<HashMap<String, VecDeque<StartScript>>>,
    events: Mutex<Vec<(String, &'static str, u64)>>,
    starts: AtomicUsize,
    links: AtomicUsize,
}

pub(crate) struct FakeLink {
    servers: FakeServers,
    name: String,
    life: Behavior,
    connected_at: Instant,
    probes: AtomicUsize,
}

/// Counts the starts in progress.
struct CountGuard<'a>(&'a AtomicUsize);

impl<'a> CountGuard<'a> {
    fn new(counter: &'a AtomicUsize) -> Self {
        counter.fetch_add(1, Ordering::SeqCst);
        Self(counter)
    }
}

impl Drop for CountGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl FakeServers {
    pub(crate) fn new() -> Self {
        Self(Arc::new(FakeServersInner {
            created: Instant::now(),
            scripts: Mutex::default(),
            events: Mutex::default(),
            starts: AtomicUsize::new(0),
            links: AtomicUsize::new(0),
        }))
    }

    pub(super) fn script(&self, name: &str, starts: impl IntoIterator<Item = StartScript>) {
        self.0.scripts.lock().insert(name.into(), starts.into_iter().collect());
    }

    pub(crate) fn fleet(&self, audit: &Audit) -> Fleet<FakeServers> {
        Fleet::new(self.clone(), audit.clone(), FleetOptions::default())
    }

    /// The times of an event of a server, in seconds.
    pub(super) fn times(&self, name: &str, event: &str) -> Vec<u64> {
        let events = self.0.events.lock();
        events.iter().filter(|(server, kind, _)| server == name && *kind == event).map(|(_, _, time)| *time).collect()
    }

    pub(super) fn starts(&self, name: &str) -> Vec<u64> {
        self.times(name, "start")
    }

    /// The number of starts in progress and of links.
    pub(super) fn alive(&self) -> (usize, usize) {
        (self.0.starts.load(Ordering::SeqCst), self.0.links.load(Ordering::SeqCst))
    }

    pub(super) fn now(&self) -> u64 {
        (self.0.created.elapsed() + Duration::from_millis(100)).as_secs()
    }

    fn record(&self, name: &str, event: &'static str) {
        self.0.events.lock().push((name.into(), event, self.now()));
    }

    fn next_start(&self, name: &str) -> StartScript {
        let mut scripts = self.0.scripts.lock();
        let Some(script) = scripts.get_mut(name) else { return StartScript::Succeeds(HEALTHY) };
        if script.len() > 1 { script.pop_front().unwrap() } else { script[0].clone() }
    }
}

impl Connect for FakeServers {
    type Link = FakeLink;

    async fn connect(&self, entry: &ServerEntry, stage: &Stage) -> Result<FakeLink, ConnectFailure> {
        let _guard = CountGuard::new(&self.0.starts);
        self.record(&entry.name, "start");
        let life = match self.next_start(&entry.name) {
            StartScript::Succeeds(life) => life,
            StartScript::SucceedsAfter(time, life) => {
                sleep(time).await;
                life
            }
            StartScript::Fails(failure) => return Err(failure),
            StartScript::Hangs(phase) => {
                stage.reached(phase);
                pending().await
            }
            StartScript::Panics => panic!("as the script says"),
        };
        self.0.links.fetch_add(1, Ordering::SeqCst);
        let (servers, name) = (self.clone(), entry.name.clone());
        Ok(FakeLink { servers, name, life, connected_at: Instant::now(), probes: AtomicUsize::new(0) })
    }
}

impl Link for FakeLink {
    async fn ended(&self) -> LinkEnd {
        match self.life.dies_after {
            Some(time) => tokio::time::sleep_until(self.connected_at + time).await,
            None => pending().await,
        }
        LinkEnd { message: "exit code 1".into(), hints: Vec::new() }
    }

    fn is_silent(&self) -> bool {
        self.life.probe != Probe::NotNeeded
    }

    async fn probe(&self) -> bool {
        self.servers.record(&self.name, "probe");
        let count = self.probes.fetch_add(1, Ordering::SeqCst) + 1;
        match self.life.probe {
            Probe::NotNeeded | Probe::Succeeds => true,
            Probe::Fails => false,
            Probe::Hangs => pending().await,
            Probe::SucceedsAfter(missed) => count.is_multiple_of(missed + 1),
            Probe::Panics => panic!("as the script says"),
        }
    }

    async fn stop(self: Arc<Self>) {
        self.servers.record(&self.name, "stop");
        if self.life.ignores_stop {
            pending::<()>().await;
        }
        sleep(Duration::from_secs(1)).await;
        self.servers.record(&self.name, "stopped");
    }

    fn tool_count(&self) -> usize {
        2
    }

    fn tools(&self) -> Vec<ToolSummary> {
        let tool = |name: &str, description: Option<&str>| ToolSummary {
            name: name.into(),
            description: description.map(Into::into),
        };
        vec![tool("read", Some("Reads \u{1b}[31ma file")), tool("write", None)]
    }

    fn blocked(&self) -> Vec<String> {
        Vec::new()
    }

    fn stderr_tail(&self) -> Vec<String> {
        vec!["ready".into(), "panic: out of cheese".into()]
    }

    fn sandbox_id(&self) -> Option<String> {
        Some("box-1".into())
    }

    fn usage(&self) -> Value {
        json!({"memory_bytes": 4096})
    }
}

impl Drop for FakeLink {
    fn drop(&mut self) {
        self.servers.0.links.fetch_sub(1, Ordering::SeqCst);
    }
}

pub(super) fn entry(name: &str) -> ServerEntry {
    ServerEntry {
        name: name.into(),
        uuid: format!("uuid-of-{name}"),
        enable: true,
        description: None,
        transport: Transport::Stdio(Box::new(StdioSettings::new("server"))),
        start: StartPolicy::AtOnce,
    }
}

pub(super) fn on_demand(name: &str) -> ServerEntry {
    ServerEntry { start: StartPolicy::OnDemand, ..entry(name) }
}

pub(super) fn remote(name: &str) -> ServerEntry {
    ServerEntry { transport: Transport::Http(RemoteSettings::new("http://127.0.0.1:1/mcp")), ..entry(name) }
}

pub(super) fn disabled(name: &str) -> ServerEntry {
    ServerEntry { enable: false, ..entry(name) }
}

pub(crate) fn entries(names: &[&str]) -> Vec<ServerEntry> {
    names.iter().map(|name| entry(name)).collect()
}

/// Waits until everything that is due within this time has happened.
pub(super) async fn wait_seconds(seconds: u64) {
    sleep(Duration::from_secs(seconds) + Duration::from_millis(10)).await;
}

pub(super) fn info(fleet: &Fleet<FakeServers>, name: &str) -> ServerInfo {
    fleet.info(name).unwrap()
}

pub(super) fn status(fleet: &Fleet<FakeServers>, name: &str) -> &'static str {
    info(fleet, name).status.name()
}
