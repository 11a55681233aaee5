//! Waiting for links, retries on demand, the circuit breaker, and the descriptions of servers.

use std::sync::Arc;
use std::time::Duration;

use ringfence_servers::Phase;
use ringfence_store::Audit;

use super::fake::{FakeServers, HEALTHY, StartScript, disabled, entries, entry, fails, info, wait_seconds};
use crate::fleet::{CallEnd, NoResponse, Status};

const LONG: Duration = Duration::from_secs(100);
const LOST: CallEnd = CallEnd::NoResponse(NoResponse::ConnectionLost);

fn slow(seconds: u64) -> StartScript {
    StartScript::SucceedsAfter(Duration::from_secs(seconds), HEALTHY)
}

#[tokio::test(start_paused = true)]
async fn call_waits_for_a_connecting_server() {
    let servers = FakeServers::new();
    servers.script("slow", [fails(Phase::McpInit), slow(7)]);
    let fleet = servers.fleet(&Audit::disabled());
    fleet.apply(entries(&["slow"]));
    assert!(fleet.link("slow").is_none());
    let missing = fleet.await_link("slow", Duration::from_secs(1)).await.err().unwrap();
    assert_eq!((missing.status, missing.phase), (Some(Status::Connecting), Some(Phase::McpInit)));
    assert!(fleet.await_link("slow", LONG).await.is_ok());
    assert_eq!(servers.now(), 9);
}

#[tokio::test(start_paused = true)]
async fn call_to_a_disabled_or_unknown_server_fails_at_once() {
    let servers = FakeServers::new();
    let fleet = servers.fleet(&Audit::disabled());
    fleet.apply(vec![disabled("off")]);
    let missing = fleet.await_link("off", LONG).await.err().unwrap();
    assert_eq!(missing.to_string(), "server off is disabled: its entry is disabled");
    let missing = fleet.await_link("missing", LONG).await.err().unwrap();
    assert_eq!(missing.to_string(), "server missing is unknown: no entry has this name");
    assert_eq!(servers.now(), 0);
}

#[tokio::test(start_paused = true)]
async fn enabled_server_can_be_called_right_after_the_change() {
    let servers = FakeServers::new();
    let fleet = servers.fleet(&Audit::disabled());
    fleet.apply(vec![disabled("a")]);
    wait_seconds(1).await;
    fleet.apply(entries(&["a"]));
    assert!(fleet.await_link("a", LONG).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn call_retries_a_failed_server_after_the_cool_down() {
    let servers = FakeServers::new();
    servers.script("repaired", [fails(Phase::RelayConnect)]);
    let fleet = servers.fleet(&Audit::disabled());
    fleet.apply(entries(&["repaired"]));
    wait_seconds(20).await;
    for _ in 0..5 {
        let missing = fleet.await_link("repaired", LONG).await.err().unwrap();
        assert_eq!((missing.status, missing.phase), (Some(Status::Error), Some(Phase::RelayConnect)));
    }
    assert_eq!(servers.starts("repaired"), [0, 2, 6, 14], "no retry before the cool-down has passed");
    wait_seconds(30).await;
    for _ in 0..5 {
        assert!(fleet.await_link("repaired", LONG).await.is_err());
    }
    assert_eq!(servers.starts("repaired"), [0, 2, 6, 14, 50], "a single attempt");
    wait_seconds(40).await;
    servers.script("repaired", [slow(3)]);
    let calls = (0..5).map(|_| fleet.await_link("repaired", LONG));
    let links: Vec<_> = futures_util::future::join_all(calls).await.into_iter().map(Result::unwrap).collect();
    assert!(links.iter().all(|link| Arc::ptr_eq(link, &links[0])));
    assert_eq!(servers.starts("repaired").len(), 6);
    assert_eq!(info(&fleet, "repaired").error, None);
}

#[tokio::test(start_paused = true)]
async fn calls_without_response_open_the_circuit() {
    let servers = FakeServers::new();
    let fleet = servers.fleet(&Audit::disabled());
    fleet.apply(entries(&["silent", "healthy"]));
    for _ in 0..5 {
        let link = fleet.admit("silent", LONG).await.unwrap();
        fleet.call_ended("silent", &link, LOST);
    }
    let missing = fleet.admit("silent", LONG).await.err().unwrap();
    assert_eq!((missing.status, missing.phase), (Some(Status::Connected), Some(Phase::ToolCall)));
    assert_eq!(missing.message, "the last 5 calls failed; the next call is allowed in 15 s");
    assert_eq!(info(&fleet, "silent").error.unwrap().phase, Phase::ToolCall);
    assert!(fleet.admit("healthy", LONG).await.is_ok());
    for _ in 0..3 {
        assert!(fleet.await_link("silent", LONG).await.is_ok(), "only calls are refused");
    }
    wait_seconds(15).await;
    assert!(fleet.await_link("silent", LONG).await.is_ok(), "and only a call can be the test call");
    let link = fleet.admit("silent", LONG).await.unwrap();
    assert!(fleet.admit("silent", LONG).await.is_err(), "a single test call is allowed");
    fleet.call_ended("silent", &link, CallEnd::Responded);
    assert!(fleet.admit("silent", LONG).await.is_ok());

    for _ in 0..5 {
        fleet.call_ended("silent", &link, LOST);
    }
    fleet.restart("silent").await;
    let new = fleet.admit("silent", LONG).await.unwrap();
    for _ in 0..5 {
        fleet.call_ended("silent", &link, LOST);
    }
    assert!(fleet.admit("silent", LONG).await.is_ok(), "calls over an old link are not counted");
    drop(new);
}

#[tokio::test(start_paused = true)]
async fn wait_ends_when_every_first_attempt_has_a_result() {
    let servers = FakeServers::new();
    servers.script("slow", [slow(7)]);
    servers.script("bad", [fails(Phase::McpInit)]);
    let fleet = servers.fleet(&Audit::disabled());
    fleet.apply(vec![entry("bad"), entry("slow"), disabled("off")]);
    fleet.wait_for_first_attempts(LONG).await;
    assert_eq!(servers.now(), 7);
    servers.script("slow", [StartScript::Hangs(Phase::McpInit)]);
    fleet.restart("slow").await;
    fleet.wait_for_first_attempts(Duration::from_secs(5)).await;
    assert_eq!(servers.now(), 12, "not longer than the timeout");
}

#[tokio::test(start_paused = true)]
async fn descriptions_of_servers() {
    let servers = FakeServers::new();
    servers.script("bad", [fails(Phase::McpInit)]);
    let fleet = servers.fleet(&Audit::disabled());
    fleet.apply(entries(&["bad", "good"]));
    wait_seconds(42).await;
    insta::assert_json_snapshot!("single_server", fleet.info("good"));
    insta::assert_json_snapshot!("all_servers", fleet.all());
    assert_eq!(fleet.info("uuid-of-good"), fleet.info("good"));
}
