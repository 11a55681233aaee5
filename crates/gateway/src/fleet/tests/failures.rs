//! Servers that fail to start, crash, hang or stop responding.

use std::sync::Arc;
use std::time::Duration;

use ringfence_core::AuditKind;
use ringfence_entries::{ServerEntry, StdioSettings, Transport};
use ringfence_servers::Phase;
use ringfence_store::Audit;

use super::fake::{
    Behavior, FakeServers, HEALTHY, Probe, StartScript, dies_after, entries, entry, fails, info, remote, status,
    wait_seconds,
};
use crate::fleet::{ConnectFailure, Fleet, FleetOptions};

#[tokio::test(start_paused = true)]
async fn attempts_end_after_retries_with_growing_delays() {
    let (servers, audit) = (FakeServers::new(), Audit::in_memory());
    servers.script("bad", [fails(Phase::ProcessStart)]);
    let fleet = servers.fleet(&audit);
    fleet.apply(entries(&["bad"]));
    wait_seconds(1).await;
    assert_eq!((status(&fleet, "bad"), info(&fleet, "bad").retry_count), ("connecting", 0));
    wait_seconds(10).await;
    assert_eq!((status(&fleet, "bad"), info(&fleet, "bad").retry_count), ("connecting", 2));
    wait_seconds(600).await;
    assert_eq!(servers.starts("bad"), [0, 2, 6, 14]);
    let info = info(&fleet, "bad");
    assert_eq!((info.status.name(), info.retry_count, info.restart_count), ("error", 3, 0));
    let error = info.error.unwrap();
    assert_eq!((error.phase, error.message.as_str()), (Phase::ProcessStart, "cannot start"));
    let events = audit.collected();
    assert_eq!(events.iter().filter(|event| event.kind == AuditKind::ServerFailed).count(), 4);
    assert_eq!(events[0].outcome, "process_start");
    assert_eq!(events[3].detail["status"], "error");
}

#[tokio::test(start_paused = true)]
async fn permanent_failure_is_not_retried() {
    let servers = FakeServers::new();
    let failure = ConnectFailure { is_transient: false, ..ConnectFailure::new(Phase::BoxUnavailable, "no sandbox") };
    servers.script("no-sandbox", [StartScript::Fails(failure)]);
    let fleet = servers.fleet(&Audit::disabled());
    fleet.apply(entries(&["no-sandbox"]));
    wait_seconds(600).await;
    assert_eq!(servers.starts("no-sandbox"), [0]);
    assert_eq!(status(&fleet, "no-sandbox"), "error");
    assert_eq!(info(&fleet, "no-sandbox").error.unwrap().phase.name(), "box_unavailable");
}

#[tokio::test(start_paused = true)]
async fn stable_connection_resets_the_attempts() {
    let servers = FakeServers::new();
    let bad = || fails(Phase::McpInit);
    servers.script("good", [bad(), bad(), dies_after(70), bad()]);
    let fleet = servers.fleet(&Audit::disabled());
    fleet.apply(entries(&["good"]));
    wait_seconds(30).await;
    assert_eq!((status(&fleet, "good"), info(&fleet, "good").retry_count), ("connected", 2));
    wait_seconds(40).await;
    assert_eq!((status(&fleet, "good"), info(&fleet, "good").retry_count), ("connected", 0));
    wait_seconds(600).await;
    // The server dies at 76, and the cleanup takes a second.
    assert_eq!(servers.starts("good"), [0, 2, 6, 77, 79, 83, 91]);
    assert_eq!(status(&fleet, "good"), "error");
}

#[tokio::test(start_paused = true)]
async fn repeated_early_crashes_use_up_the_attempts() {
    let servers = FakeServers::new();
    servers.script("flaky", [dies_after(10)]);
    let fleet = servers.fleet(&Audit::disabled());
    fleet.apply(entries(&["flaky"]));
    wait_seconds(600).await;
    assert_eq!(servers.starts("flaky"), [0, 13, 28, 47]);
    let info = info(&fleet, "flaky");
    assert_eq!((info.status.name(), info.restart_count), ("error", 3));
    assert_eq!(info.error.unwrap().phase, Phase::Runtime);
    assert_eq!(info.stderr.unwrap(), ["ready", "panic: out of cheese"], "the last stderr is available");
    assert_eq!(servers.alive(), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn hanging_start_fails_in_the_phase_that_it_reached() {
    let servers = FakeServers::new();
    servers.script("local", [StartScript::Hangs(Phase::DepInstall)]);
    servers.script("far", [StartScript::Hangs(Phase::McpInit)]);
    let fleet = servers.fleet(&Audit::disabled());
    let mut settings = StdioSettings::new("server");
    settings.sandbox_settings.startup_timeout = Duration::from_secs(20);
    fleet.apply(vec![ServerEntry { transport: Transport::Stdio(settings.into()), ..entry("local") }, remote("far")]);
    wait_seconds(600).await;
    assert_eq!(servers.starts("local"), [0, 22, 46, 74]);
    assert_eq!(servers.starts("far"), [0, 32, 66, 104]);
    let local = info(&fleet, "local").error.unwrap();
    assert_eq!((local.phase, local.message.as_str()), (Phase::DepInstall, "not ready within 20 s"));
    assert_eq!(local.hints.len(), 1);
    assert_eq!(info(&fleet, "far").error.unwrap().phase, Phase::McpInit);
    assert_eq!(servers.alive(), (0, 0), "an aborted start leaves nothing behind");
}

#[tokio::test(start_paused = true)]
async fn failed_start_reports_its_sanitized_stderr() {
    let servers = FakeServers::new();
    let mut failure = ConnectFailure::new(Phase::ProcessStart, "exit code 2\u{1b}[2J");
    failure.stderr = (0..2000).map(|line| format!("line {line}")).collect();
    servers.script("dead", [StartScript::Fails(failure)]);
    let fleet = servers.fleet(&Audit::disabled());
    fleet.apply(entries(&["dead"]));
    wait_seconds(1).await;
    let info = info(&fleet, "dead");
    assert_eq!(info.error.unwrap().message, "exit code 2[2J", "no terminal escape sequences");
    let stderr = info.stderr.unwrap();
    assert_eq!((stderr.len(), stderr[499].as_str()), (500, "line 1999"));
}

#[tokio::test(start_paused = true)]
async fn crash_restarts_only_that_server() {
    let (servers, audit) = (FakeServers::new(), Audit::in_memory());
    servers.script("crashing", [dies_after(100), StartScript::Succeeds(HEALTHY)]);
    let fleet = servers.fleet(&audit);
    fleet.apply(entries(&["healthy", "crashing"]));
    wait_seconds(50).await;
    let (healthy, crashing) = (fleet.link("healthy").unwrap(), fleet.link("crashing").unwrap());
    wait_seconds(50).await;
    assert!(fleet.link("crashing").is_none(), "a lost link is not returned");
    assert_eq!(status(&fleet, "crashing"), "connecting");
    drop(crashing);
    wait_seconds(50).await;
    assert_eq!(servers.starts("crashing"), [0, 101]);
    assert!(fleet.link("crashing").is_some());
    assert_eq!(info(&fleet, "crashing").restart_count, 1);
    assert_eq!(info(&fleet, "crashing").error, None);
    assert!(Arc::ptr_eq(&healthy, &fleet.link("healthy").unwrap()));
    assert_eq!(servers.starts("healthy"), [0]);
    let events: Vec<_> = audit
        .collected()
        .into_iter()
        .filter(|event| event.detail["server"] == "crashing")
        .map(|event| format!("{} {}", event.kind.name(), event.outcome))
        .collect();
    assert_eq!(events, ["server_started ok", "server_failed runtime", "server_started restarted"]);
}

#[tokio::test(start_paused = true)]
async fn three_consecutive_missed_probes_restart_the_server() {
    let servers = FakeServers::new();
    let probed = |probe| StartScript::Succeeds(Behavior { probe, ..HEALTHY });
    servers.script("refusing", [probed(Probe::Fails), StartScript::Succeeds(HEALTHY)]);
    servers.script("hanging", [probed(Probe::Hangs), StartScript::Succeeds(HEALTHY)]);
    servers.script("slow", [probed(Probe::SucceedsAfter(2))]);
    servers.script("quiet", [probed(Probe::Succeeds)]);
    let fleet = servers.fleet(&Audit::disabled());
    fleet.apply(entries(&["busy", "hanging", "quiet", "refusing", "slow"]));
    wait_seconds(600).await;
    assert_eq!(servers.times("refusing", "probe"), [5, 10, 15]);
    assert_eq!(servers.starts("refusing"), [0, 18], "down at 15, cleaned up at 16, tried again after 2 s");
    assert_eq!(servers.times("hanging", "probe"), [5, 10, 15]);
    assert_eq!(servers.starts("hanging"), [0, 23]);
    assert_eq!(servers.starts("slow"), [0]);
    assert_eq!(servers.starts("quiet"), [0]);
    assert!(servers.times("quiet", "probe").len() > 100);
    assert_eq!(servers.times("busy", "probe"), [0; 0], "a server that sends messages is not probed");
}

#[tokio::test(start_paused = true)]
async fn panic_counts_as_a_failure_of_that_server() {
    let servers = FakeServers::new();
    servers.script("start", [StartScript::Panics]);
    servers.script(
        "probe",
        [StartScript::Succeeds(Behavior { probe: Probe::Panics, ..HEALTHY }), StartScript::Succeeds(HEALTHY)],
    );
    let fleet = servers.fleet(&Audit::disabled());
    fleet.apply(entries(&["healthy", "probe", "start"]));
    wait_seconds(600).await;
    assert_eq!(servers.starts("start"), [0, 2, 6, 14]);
    assert_eq!(info(&fleet, "start").error.unwrap().phase, Phase::SessionCreate);
    assert_eq!(servers.starts("probe"), [0, 8]);
    assert_eq!((status(&fleet, "probe"), status(&fleet, "healthy")), ("connected", "connected"));
    assert_eq!(servers.alive(), (0, 2));
}

#[tokio::test(start_paused = true)]
async fn hanging_starts_do_not_block_other_servers() {
    let servers = FakeServers::new();
    let names: Vec<String> = (0..9).map(|number| format!("hangs-{number}")).collect();
    for name in &names {
        servers.script(name, [StartScript::Hangs(Phase::McpInit)]);
    }
    let fleet = servers.fleet(&Audit::disabled());
    let mut all: Vec<_> = names.iter().map(|name| entry(name)).collect();
    all.push(entry("quick"));
    fleet.apply(all);
    wait_seconds(4).await;
    assert_eq!(servers.alive().0, 4, "the limit of quick starts");
    wait_seconds(7).await;
    assert_eq!(servers.starts("quick"), [10], "long before the startup timeout of the others, 120 s");
    assert_eq!(status(&fleet, "quick"), "connected");
}

#[tokio::test(start_paused = true)]
async fn startup_timeout_does_not_include_the_wait_for_a_permit() {
    let servers = FakeServers::new();
    for name in ["a", "b", "c", "d", "e"] {
        servers.script(name, [StartScript::Hangs(Phase::McpInit)]);
    }
    let options = FleetOptions { max_slow_starts: 0, ..FleetOptions::default() };
    let fleet = Fleet::new(servers.clone(), Audit::disabled(), options);
    fleet.apply(entries(&["a", "b", "c", "d", "e", "quick"]));
    wait_seconds(119).await;
    assert_eq!((servers.starts("e").len(), servers.alive().0), (0, 4), "there are no slow permits");
    wait_seconds(2).await;
    assert_eq!((servers.starts("e"), servers.starts("quick")), (vec![120], vec![120]));
    wait_seconds(118).await;
    assert_eq!(info(&fleet, "e").error, None, "its timeout has not expired");
    wait_seconds(2).await;
    assert_eq!(info(&fleet, "e").error.unwrap().phase, Phase::McpInit);
}
