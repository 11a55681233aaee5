//! Whoever needs a link: waits, cold starts, the circuit, and what is told.

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
async fn a_call_waits_for_a_server_that_connects() {
    let world = FakeServers::new();
    world.script("slow", [fails(Phase::McpInit), slow(7)]);
    let fleet = world.fleet(&Audit::disabled());
    fleet.apply(entries(&["slow"]));
    assert!(fleet.link("slow").is_none());
    let missing = fleet.await_link("slow", Duration::from_secs(1)).await.err().unwrap();
    assert_eq!((missing.status, missing.phase), (Some(Status::Connecting), Some(Phase::McpInit)));
    assert!(fleet.await_link("slow", LONG).await.is_ok());
    assert_eq!(world.now(), 9);
}

#[tokio::test(start_paused = true)]
async fn a_call_to_a_server_that_is_not_there_is_told_why_at_once() {
    let world = FakeServers::new();
    let fleet = world.fleet(&Audit::disabled());
    fleet.apply(vec![disabled("off")]);
    let missing = fleet.await_link("off", LONG).await.err().unwrap();
    assert_eq!(missing.to_string(), "server off is disabled: its entry is disabled");
    let missing = fleet.await_link("nobody", LONG).await.err().unwrap();
    assert_eq!(missing.to_string(), "server nobody is unknown: there is no such server");
    assert_eq!(world.now(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_enabled_server_can_be_called_right_after_the_change() {
    let world = FakeServers::new();
    let fleet = world.fleet(&Audit::disabled());
    fleet.apply(vec![disabled("a")]);
    wait_seconds(1).await;
    fleet.apply(entries(&["a"]));
    assert!(fleet.await_link("a", LONG).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_server_that_was_given_up_and_mended_comes_back_when_it_is_called() {
    let world = FakeServers::new();
    world.script("mended", [fails(Phase::RelayConnect)]);
    let fleet = world.fleet(&Audit::disabled());
    fleet.apply(entries(&["mended"]));
    wait_seconds(20).await;
    for _ in 0..5 {
        let missing = fleet.await_link("mended", LONG).await.err().unwrap();
        assert_eq!((missing.status, missing.phase), (Some(Status::Error), Some(Phase::RelayConnect)));
    }
    assert_eq!(world.starts("mended"), [0, 2, 6, 14], "not so soon after the last attempt");
    wait_seconds(30).await;
    for _ in 0..5 {
        assert!(fleet.await_link("mended", LONG).await.is_err());
    }
    assert_eq!(world.starts("mended"), [0, 2, 6, 14, 50], "one attempt, not a new budget");
    wait_seconds(40).await;
    world.script("mended", [slow(3)]);
    let calls = (0..5).map(|_| fleet.await_link("mended", LONG));
    let links: Vec<_> = futures_util::future::join_all(calls).await.into_iter().map(Result::unwrap).collect();
    assert!(links.iter().all(|link| Arc::ptr_eq(link, &links[0])));
    assert_eq!(world.starts("mended").len(), 6);
    assert_eq!(info(&fleet, "mended").error, None);
}

#[tokio::test(start_paused = true)]
async fn calls_that_get_no_answer_open_the_circuit() {
    let world = FakeServers::new();
    let fleet = world.fleet(&Audit::disabled());
    fleet.apply(entries(&["dumb", "fine"]));
    for _ in 0..5 {
        let link = fleet.admit("dumb", LONG).await.unwrap();
        fleet.call_ended("dumb", &link, LOST);
    }
    let missing = fleet.admit("dumb", LONG).await.err().unwrap();
    assert_eq!((missing.status, missing.phase), (Some(Status::Connected), Some(Phase::ToolCall)));
    assert_eq!(missing.message, "the last 5 calls failed; the next is let through in 15 s");
    assert_eq!(info(&fleet, "dumb").error.unwrap().phase, Phase::ToolCall);
    assert!(fleet.admit("fine", LONG).await.is_ok());
    for _ in 0..3 {
        assert!(fleet.await_link("dumb", LONG).await.is_ok(), "what is no call is not refused");
    }
    wait_seconds(15).await;
    assert!(fleet.await_link("dumb", LONG).await.is_ok(), "nor is it the one that tries");
    let link = fleet.admit("dumb", LONG).await.unwrap();
    assert!(fleet.admit("dumb", LONG).await.is_err(), "one call tries");
    fleet.call_ended("dumb", &link, CallEnd::Responded);
    assert!(fleet.admit("dumb", LONG).await.is_ok());

    for _ in 0..5 {
        fleet.call_ended("dumb", &link, LOST);
    }
    fleet.restart("dumb").await;
    let new = fleet.admit("dumb", LONG).await.unwrap();
    for _ in 0..5 {
        fleet.call_ended("dumb", &link, LOST);
    }
    assert!(fleet.admit("dumb", LONG).await.is_ok(), "what became of old calls does not count");
    drop(new);
}

#[tokio::test(start_paused = true)]
async fn settled_is_when_all_have_tried_once() {
    let world = FakeServers::new();
    world.script("slow", [slow(7)]);
    world.script("bad", [fails(Phase::McpInit)]);
    let fleet = world.fleet(&Audit::disabled());
    fleet.apply(vec![entry("bad"), entry("slow"), disabled("off")]);
    fleet.wait_for_first_attempts(LONG).await;
    assert_eq!(world.now(), 7);
    world.script("slow", [StartScript::Hangs(Phase::McpInit)]);
    fleet.restart("slow").await;
    fleet.wait_for_first_attempts(Duration::from_secs(5)).await;
    assert_eq!(world.now(), 12, "no longer than one is willing to wait");
}

#[tokio::test(start_paused = true)]
async fn what_is_told_of_a_server() {
    let world = FakeServers::new();
    world.script("bad", [fails(Phase::McpInit)]);
    let fleet = world.fleet(&Audit::disabled());
    fleet.apply(entries(&["bad", "good"]));
    wait_seconds(42).await;
    insta::assert_json_snapshot!("one", fleet.info("good"));
    insta::assert_json_snapshot!("all", fleet.all());
    assert_eq!(fleet.info("uuid-of-good"), fleet.info("good"));
}
