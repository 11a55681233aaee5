//! Nothing is left, however servers end.

use std::time::Duration;

use ringfence_servers::Phase;
use ringfence_store::Audit;
use tokio::time::Instant;

use super::fake::{
    Behavior, FakeServers, HEALTHY, Probe, StartScript, dies_after, disabled, entries, fails, status, wait_seconds,
};
use crate::fleet::{CallEnd, Fleet, FleetOptions, NoResponse};

#[tokio::test(start_paused = true)]
async fn all_servers_are_stopped_at_once_and_within_a_bound() {
    let world = FakeServers::new();
    world.script("hangs", [StartScript::Hangs(Phase::DepInstall)]);
    world.script("deaf", [StartScript::Succeeds(Behavior { ignores_stop: true, ..HEALTHY })]);
    world.script("dumb", [StartScript::Succeeds(Behavior { ignores_stop: true, probe: Probe::Hangs, ..HEALTHY })]);
    world.script("waits", [fails(Phase::McpInit)]);
    let fleet = world.fleet(&Audit::disabled());
    let names = ["calm", "deaf", "dumb", "hangs", "waits"];
    fleet.apply(entries(&names));
    wait_seconds(7).await;
    let began = Instant::now();
    fleet.shut_down().await;
    assert!(began.elapsed() <= Duration::from_secs(9));
    assert_eq!(world.times("calm", "stopped"), [8]);
    assert_eq!((fleet.0.state.tasks.len(), world.alive()), (0, (0, 0)));
    for name in names {
        assert_eq!(status(&fleet, name), "stopped");
    }
    assert_eq!(fleet.apply(entries(&["late"])).len(), 1, "nothing starts any more");
    assert!(fleet.await_link("calm", Duration::from_secs(5)).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_fleet_that_is_dropped_takes_its_servers_with_it() {
    let world = FakeServers::new();
    world.script("hangs", [StartScript::Hangs(Phase::DepInstall)]);
    let fleet = world.fleet(&Audit::disabled());
    fleet.apply(entries(&["a", "hangs"]));
    wait_seconds(10).await;
    assert_eq!(world.alive(), (1, 1));
    drop(fleet);
    wait_seconds(0).await;
    assert_eq!(world.alive(), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn two_hundred_starts_crashes_and_stops_leave_nothing() {
    let world = FakeServers::new();
    let fleet = world.fleet(&Audit::disabled());
    let shared = fleet.0.state.clone();
    let names = ["crashes", "deaf", "fails", "hangs", "panics", "works"];
    for round in 0..200 {
        world.script("crashes", [dies_after(round % 5)]);
        world.script("deaf", [StartScript::Succeeds(Behavior { ignores_stop: true, ..HEALTHY })]);
        world.script("fails", [fails(Phase::DepInstall)]);
        world.script("hangs", [StartScript::Hangs(Phase::McpInit)]);
        world.script("panics", [if round % 50 == 0 { StartScript::Panics } else { StartScript::Succeeds(HEALTHY) }]);
        fleet.apply(entries(&names));
        wait_seconds(round % 17).await;
        fleet.apply(entries(&names[..(round % 3) as usize]));
        wait_seconds(round % 4).await;
        fleet.apply(vec![]);
        wait_seconds(10).await;
        assert_eq!((shared.tasks.len(), world.alive()), (0, (0, 0)), "round {round}");
        assert_eq!(shared.roster().len_with_removed(), 0);
    }
    assert!(world.starts("works").len() > 100);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_hands_on_one_fleet_leave_nothing() {
    const SOON: Duration = Duration::from_millis(3);
    let world = FakeServers::new();
    world.script("crashes", [dies_after(0)]);
    world.script("deaf", [StartScript::Succeeds(Behavior { ignores_stop: true, probe: Probe::Hangs, ..HEALTHY })]);
    world.script("fails", [fails(Phase::DepInstall)]);
    world.script("hangs", [StartScript::Hangs(Phase::McpInit)]);
    let options = FleetOptions {
        retry_delays: [SOON; 3],
        slow_after: SOON,
        stable_after: SOON,
        cool_down: SOON,
        probe_period: SOON,
        stop_timeout: SOON,
        ..FleetOptions::default()
    };
    let fleet = Fleet::new(world.clone(), Audit::disabled(), options);
    let hands = (0..8_usize).map(|hand| {
        let fleet = fleet.clone();
        tokio::spawn(async move {
            let names = ["crashes", "deaf", "fails", "hangs", "works"];
            for round in 0..100 {
                match (hand + round) % 4 {
                    0 => drop(fleet.apply(entries(&names[round % 3..]))),
                    1 => drop(fleet.apply(vec![disabled(names[round % 5])])),
                    2 => drop(fleet.restart(names[round % 5]).await),
                    _ => fleet.wait_for_first_attempts(SOON).await,
                }
                if let Ok(link) = fleet.await_link(names[hand % 5], SOON).await {
                    fleet.call_ended(names[hand % 5], &link, CallEnd::NoResponse(NoResponse::ConnectionLost));
                }
                fleet.all();
            }
        })
    });
    for hand in futures_util::future::join_all(hands).await {
        hand.unwrap();
    }
    fleet.shut_down().await;
    assert_eq!((fleet.0.state.tasks.len(), world.alive()), (0, (0, 0)));
    assert_eq!(fleet.0.state.roster().len_with_removed(), 0);
}
