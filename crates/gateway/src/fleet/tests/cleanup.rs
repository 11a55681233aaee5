//! No task, start or link is left behind, however servers end.

use std::time::Duration;

use ringfence_servers::Phase;
use ringfence_store::Audit;
use tokio::time::Instant;

use super::fake::{
    Behavior, FakeServers, HEALTHY, Probe, StartScript, dies_after, disabled, entries, fails, status, wait_seconds,
};
use crate::fleet::{CallEnd, Fleet, FleetOptions, NoResponse};

#[tokio::test(start_paused = true)]
async fn shutdown_stops_all_servers_concurrently_within_a_limit() {
    let servers = FakeServers::new();
    servers.script("hangs", [StartScript::Hangs(Phase::DepInstall)]);
    servers.script("ignores-stop", [StartScript::Succeeds(Behavior { ignores_stop: true, ..HEALTHY })]);
    servers.script(
        "ignores-probes",
        [StartScript::Succeeds(Behavior { ignores_stop: true, probe: Probe::Hangs, ..HEALTHY })],
    );
    servers.script("waits", [fails(Phase::McpInit)]);
    let fleet = servers.fleet(&Audit::disabled());
    let names = ["healthy", "ignores-stop", "ignores-probes", "hangs", "waits"];
    fleet.apply(entries(&names));
    wait_seconds(7).await;
    let began = Instant::now();
    fleet.shut_down().await;
    assert!(began.elapsed() <= Duration::from_secs(9));
    assert_eq!(servers.times("healthy", "stopped"), [8]);
    assert_eq!((fleet.0.state.tasks.len(), servers.alive()), (0, (0, 0)));
    for name in names {
        assert_eq!(status(&fleet, name), "stopped");
    }
    assert_eq!(fleet.apply(entries(&["late"])).len(), 1, "no server starts after the shutdown");
    assert!(fleet.await_link("healthy", Duration::from_secs(5)).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn dropped_fleet_ends_its_servers() {
    let servers = FakeServers::new();
    servers.script("hangs", [StartScript::Hangs(Phase::DepInstall)]);
    let fleet = servers.fleet(&Audit::disabled());
    fleet.apply(entries(&["a", "hangs"]));
    wait_seconds(10).await;
    assert_eq!(servers.alive(), (1, 1));
    drop(fleet);
    wait_seconds(0).await;
    assert_eq!(servers.alive(), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn repeated_starts_crashes_and_stops_leave_nothing_behind() {
    let servers = FakeServers::new();
    let fleet = servers.fleet(&Audit::disabled());
    let shared = fleet.0.state.clone();
    let names = ["crashes", "ignores-stop", "fails", "hangs", "panics", "works"];
    for round in 0..200 {
        servers.script("crashes", [dies_after(round % 5)]);
        servers.script("ignores-stop", [StartScript::Succeeds(Behavior { ignores_stop: true, ..HEALTHY })]);
        servers.script("fails", [fails(Phase::DepInstall)]);
        servers.script("hangs", [StartScript::Hangs(Phase::McpInit)]);
        servers.script("panics", [if round % 50 == 0 { StartScript::Panics } else { StartScript::Succeeds(HEALTHY) }]);
        fleet.apply(entries(&names));
        wait_seconds(round % 17).await;
        fleet.apply(entries(&names[..(round % 3) as usize]));
        wait_seconds(round % 4).await;
        fleet.apply(vec![]);
        wait_seconds(10).await;
        assert_eq!((shared.tasks.len(), servers.alive()), (0, (0, 0)), "round {round}");
        assert_eq!(shared.roster().len_with_removed(), 0);
    }
    assert!(servers.starts("works").len() > 100);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_use_of_one_fleet_leaves_nothing_behind() {
    const SOON: Duration = Duration::from_millis(3);
    let servers = FakeServers::new();
    servers.script("crashes", [dies_after(0)]);
    servers.script(
        "ignores-stop",
        [StartScript::Succeeds(Behavior { ignores_stop: true, probe: Probe::Hangs, ..HEALTHY })],
    );
    servers.script("fails", [fails(Phase::DepInstall)]);
    servers.script("hangs", [StartScript::Hangs(Phase::McpInit)]);
    let options = FleetOptions {
        retry_delays: [SOON; 3],
        slow_after: SOON,
        stable_after: SOON,
        cool_down: SOON,
        probe_period: SOON,
        stop_timeout: SOON,
        ..FleetOptions::default()
    };
    let fleet = Fleet::new(servers.clone(), Audit::disabled(), options);
    let users = (0..8_usize).map(|user| {
        let fleet = fleet.clone();
        tokio::spawn(async move {
            let names = ["crashes", "ignores-stop", "fails", "hangs", "works"];
            for round in 0..100 {
                match (user + round) % 4 {
                    0 => drop(fleet.apply(entries(&names[round % 3..]))),
                    1 => drop(fleet.apply(vec![disabled(names[round % 5])])),
                    2 => drop(fleet.restart(names[round % 5]).await),
                    _ => fleet.wait_for_first_attempts(SOON).await,
                }
                if let Ok(link) = fleet.await_link(names[user % 5], SOON).await {
                    fleet.call_ended(names[user % 5], &link, CallEnd::NoResponse(NoResponse::ConnectionLost));
                }
                fleet.all();
            }
        })
    });
    for user in futures_util::future::join_all(users).await {
        user.unwrap();
    }
    fleet.shut_down().await;
    assert_eq!((fleet.0.state.tasks.len(), servers.alive()), (0, (0, 0)));
    assert_eq!(fleet.0.state.roster().len_with_removed(), 0);
}
