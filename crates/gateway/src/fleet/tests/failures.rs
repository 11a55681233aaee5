//! Servers that fail to start, crash, hang or go silent.

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
async fn retries_come_after_2_4_and_8_seconds_and_then_it_is_given_up() {
    let (world, audit) = (FakeServers::new(), Audit::in_memory());
    world.script("bad", [fails(Phase::ProcessStart)]);
    let fleet = world.fleet(&audit);
    fleet.apply(entries(&["bad"]));
    wait_seconds(1).await;
    assert_eq!((status(&fleet, "bad"), info(&fleet, "bad").retry_count), ("connecting", 0));
    wait_seconds(10).await;
    assert_eq!((status(&fleet, "bad"), info(&fleet, "bad").retry_count), ("connecting", 2));
    wait_seconds(600).await;
    assert_eq!(world.starts("bad"), [0, 2, 6, 14]);
    let told = info(&fleet, "bad");
    assert_eq!((told.status.name(), told.retry_count, told.restart_count), ("error", 3, 0));
    let error = told.error.unwrap();
    assert_eq!((error.phase, error.message.as_str()), (Phase::ProcessStart, "it does not work"));
    let events = audit.collected();
    assert_eq!(events.iter().filter(|event| event.kind == AuditKind::ServerFailed).count(), 4);
    assert_eq!(events[0].outcome, "process_start");
    assert_eq!(events[3].detail["status"], "error");
}

#[tokio::test(start_paused = true)]
async fn what_another_attempt_cannot_mend_is_not_tried_again() {
    let world = FakeServers::new();
    let failure = ConnectFailure { is_transient: false, ..ConnectFailure::new(Phase::BoxUnavailable, "no sandbox") };
    world.script("boxless", [StartScript::Fails(failure)]);
    let fleet = world.fleet(&Audit::disabled());
    fleet.apply(entries(&["boxless"]));
    wait_seconds(600).await;
    assert_eq!(world.starts("boxless"), [0]);
    assert_eq!(status(&fleet, "boxless"), "error");
    assert_eq!(info(&fleet, "boxless").error.unwrap().phase.name(), "box_unavailable");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_ran_well_earns_its_retries_back() {
    let world = FakeServers::new();
    let bad = || fails(Phase::McpInit);
    world.script("good", [bad(), bad(), dies_after(70), bad()]);
    let fleet = world.fleet(&Audit::disabled());
    fleet.apply(entries(&["good"]));
    wait_seconds(30).await;
    assert_eq!((status(&fleet, "good"), info(&fleet, "good").retry_count), ("connected", 2));
    wait_seconds(40).await;
    assert_eq!((status(&fleet, "good"), info(&fleet, "good").retry_count), ("connected", 0));
    wait_seconds(600).await;
    // It dies at 76 and takes a second to clean up.
    assert_eq!(world.starts("good"), [0, 2, 6, 77, 79, 83, 91]);
    assert_eq!(status(&fleet, "good"), "error");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_keeps_crashing_soon_uses_its_retries_up() {
    let world = FakeServers::new();
    world.script("flaky", [dies_after(10)]);
    let fleet = world.fleet(&Audit::disabled());
    fleet.apply(entries(&["flaky"]));
    wait_seconds(600).await;
    assert_eq!(world.starts("flaky"), [0, 13, 28, 47]);
    let told = info(&fleet, "flaky");
    assert_eq!((told.status.name(), told.restart_count), ("error", 3));
    assert_eq!(told.error.unwrap().phase, Phase::Runtime);
    assert_eq!(told.stderr.unwrap(), ["ready", "panic: out of cheese"], "what it last wrote is kept");
    assert_eq!(world.alive(), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_start_that_hangs_fails_in_the_phase_that_it_reached() {
    let world = FakeServers::new();
    world.script("local", [StartScript::Hangs(Phase::DepInstall)]);
    world.script("far", [StartScript::Hangs(Phase::McpInit)]);
    let fleet = world.fleet(&Audit::disabled());
    let mut settings = StdioSettings::new("server");
    settings.sandbox_settings.startup_timeout = Duration::from_secs(20);
    fleet.apply(vec![ServerEntry { transport: Transport::Stdio(settings), ..entry("local") }, remote("far")]);
    wait_seconds(600).await;
    assert_eq!(world.starts("local"), [0, 22, 46, 74]);
    assert_eq!(world.starts("far"), [0, 32, 66, 104]);
    let local = info(&fleet, "local").error.unwrap();
    assert_eq!((local.phase, local.message.as_str()), (Phase::DepInstall, "it was not ready within 20 s"));
    assert_eq!(local.hints.len(), 1);
    assert_eq!(info(&fleet, "far").error.unwrap().phase, Phase::McpInit);
    assert_eq!(world.alive(), (0, 0), "a start that is given up leaves nothing");
}

#[tokio::test(start_paused = true)]
async fn one_that_dies_at_start_says_what_it_wrote() {
    let world = FakeServers::new();
    let mut failure = ConnectFailure::new(Phase::ProcessStart, "exit code 2\u{1b}[2J");
    failure.stderr = (0..2000).map(|line| format!("line {line}")).collect();
    world.script("dead", [StartScript::Fails(failure)]);
    let fleet = world.fleet(&Audit::disabled());
    fleet.apply(entries(&["dead"]));
    wait_seconds(1).await;
    let told = info(&fleet, "dead");
    assert_eq!(told.error.unwrap().message, "exit code 2[2J", "nothing that a terminal obeys");
    let stderr = told.stderr.unwrap();
    assert_eq!((stderr.len(), stderr[499].as_str()), (500, "line 1999"));
}

#[tokio::test(start_paused = true)]
async fn a_crash_in_service_restarts_that_server_and_touches_no_other() {
    let (world, audit) = (FakeServers::new(), Audit::in_memory());
    world.script("crashing", [dies_after(100), StartScript::Succeeds(HEALTHY)]);
    let fleet = world.fleet(&audit);
    fleet.apply(entries(&["calm", "crashing"]));
    wait_seconds(50).await;
    let (calm, crashing) = (fleet.link("calm").unwrap(), fleet.link("crashing").unwrap());
    wait_seconds(50).await;
    assert!(fleet.link("crashing").is_none(), "a link that is lost is not given out");
    assert_eq!(status(&fleet, "crashing"), "connecting");
    drop(crashing);
    wait_seconds(50).await;
    assert_eq!(world.starts("crashing"), [0, 101]);
    assert!(fleet.link("crashing").is_some());
    assert_eq!(info(&fleet, "crashing").restart_count, 1);
    assert_eq!(info(&fleet, "crashing").error, None);
    assert!(Arc::ptr_eq(&calm, &fleet.link("calm").unwrap()));
    assert_eq!(world.starts("calm"), [0]);
    let told: Vec<_> = audit
        .collected()
        .into_iter()
        .filter(|event| event.detail["server"] == "crashing")
        .map(|event| format!("{} {}", event.kind.name(), event.outcome))
        .collect();
    assert_eq!(told, ["server_started ok", "server_failed runtime", "server_started restarted"]);
}

#[tokio::test(start_paused = true)]
async fn three_probes_without_an_answer_in_a_row_mean_down() {
    let world = FakeServers::new();
    let probed = |probe| StartScript::Succeeds(Behavior { probe, ..HEALTHY });
    world.script("refusing", [probed(Probe::Fails), StartScript::Succeeds(HEALTHY)]);
    world.script("hanging", [probed(Probe::Hangs), StartScript::Succeeds(HEALTHY)]);
    world.script("slow", [probed(Probe::SucceedsAfter(2))]);
    world.script("quiet", [probed(Probe::Succeeds)]);
    let fleet = world.fleet(&Audit::disabled());
    fleet.apply(entries(&["busy", "hanging", "quiet", "refusing", "slow"]));
    wait_seconds(600).await;
    assert_eq!(world.times("refusing", "probe"), [5, 10, 15]);
    assert_eq!(world.starts("refusing"), [0, 18], "down at 15, cleaned up at 16, tried again after 2 s");
    assert_eq!(world.times("hanging", "probe"), [5, 10, 15]);
    assert_eq!(world.starts("hanging"), [0, 23]);
    assert_eq!(world.starts("slow"), [0]);
    assert_eq!(world.starts("quiet"), [0]);
    assert!(world.times("quiet", "probe").len() > 100);
    assert_eq!(world.times("busy", "probe"), [0; 0], "who is heard is not asked");
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_a_failure_of_that_server() {
    let world = FakeServers::new();
    world.script("start", [StartScript::Panics]);
    world.script(
        "probe",
        [StartScript::Succeeds(Behavior { probe: Probe::Panics, ..HEALTHY }), StartScript::Succeeds(HEALTHY)],
    );
    let fleet = world.fleet(&Audit::disabled());
    fleet.apply(entries(&["calm", "probe", "start"]));
    wait_seconds(600).await;
    assert_eq!(world.starts("start"), [0, 2, 6, 14]);
    assert_eq!(info(&fleet, "start").error.unwrap().phase, Phase::SessionCreate);
    assert_eq!(world.starts("probe"), [0, 8]);
    assert_eq!((status(&fleet, "probe"), status(&fleet, "calm")), ("connected", "connected"));
    assert_eq!(world.alive(), (0, 2));
}

#[tokio::test(start_paused = true)]
async fn servers_that_hang_do_not_keep_others_from_starting() {
    let world = FakeServers::new();
    let names: Vec<String> = (0..9).map(|number| format!("hangs-{number}")).collect();
    for name in &names {
        world.script(name, [StartScript::Hangs(Phase::McpInit)]);
    }
    let fleet = world.fleet(&Audit::disabled());
    let mut all: Vec<_> = names.iter().map(|name| entry(name)).collect();
    all.push(entry("quick"));
    fleet.apply(all);
    wait_seconds(4).await;
    assert_eq!(world.alive().0, 4, "so many start at once");
    wait_seconds(7).await;
    assert_eq!(world.starts("quick"), [10], "long before the others run into their limit of 120 s");
    assert_eq!(status(&fleet, "quick"), "connected");
}

#[tokio::test(start_paused = true)]
async fn the_wait_for_a_place_is_not_part_of_the_time_to_start() {
    let world = FakeServers::new();
    for name in ["a", "b", "c", "d", "e"] {
        world.script(name, [StartScript::Hangs(Phase::McpInit)]);
    }
    let options = FleetOptions { max_slow_starts: 0, ..FleetOptions::default() };
    let fleet = Fleet::new(world.clone(), Audit::disabled(), options);
    fleet.apply(entries(&["a", "b", "c", "d", "e", "quick"]));
    wait_seconds(119).await;
    assert_eq!((world.starts("e").len(), world.alive().0), (0, 4), "no slow place either");
    wait_seconds(2).await;
    assert_eq!((world.starts("e"), world.starts("quick")), (vec![120], vec![120]));
    wait_seconds(118).await;
    assert_eq!(info(&fleet, "e").error, None, "its time is not up yet");
    wait_seconds(2).await;
    assert_eq!(info(&fleet, "e").error.unwrap().phase, Phase::McpInit);
}
