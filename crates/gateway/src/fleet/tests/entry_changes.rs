//! Changes of the entries while servers run.

use std::sync::Arc;
use std::time::Duration;

use ringfence_core::AuditKind;
use ringfence_entries::{ServerEntry, StdioSettings, Transport};
use ringfence_servers::Phase;
use ringfence_store::Audit;

use super::fake::{
    Behavior, FakeServers, HEALTHY, StartScript, disabled, entries, entry, fails, info, status, wait_seconds,
};
use crate::fleet::{Fleet, FleetOptions};

fn with_argument(name: &str, argument: &str) -> ServerEntry {
    let mut settings = StdioSettings::new("server");
    settings.args.push(argument.into());
    ServerEntry { transport: Transport::Stdio(settings.into()), ..entry(name) }
}

#[tokio::test(start_paused = true)]
async fn only_changed_servers_are_restarted() {
    let (servers, audit) = (FakeServers::new(), Audit::in_memory());
    let fleet = servers.fleet(&audit);
    fleet.apply(entries(&["changed", "described", "removed", "same"]));
    wait_seconds(10).await;
    let links = ["described", "same"].map(|name| fleet.link(name).unwrap());
    let described = ServerEntry { description: Some("new text".into()), ..entry("described") };
    fleet.apply(vec![entry("added"), with_argument("changed", "--fast"), described, entry("same")]);
    assert!(fleet.info("removed").is_none(), "removed at once");
    wait_seconds(10).await;
    assert_eq!(servers.starts("changed"), [0, 11], "stopping takes a second");
    assert_eq!(servers.starts("added"), [10]);
    assert_eq!(servers.times("removed", "stopped"), [11]);
    assert_eq!((servers.starts("described"), servers.starts("same")), (vec![0], vec![0]));
    for (name, link) in ["described", "same"].into_iter().zip(&links) {
        assert!(Arc::ptr_eq(link, &fleet.link(name).unwrap()), "{name}");
    }
    assert_eq!(info(&fleet, "described").description.as_deref(), Some("new text"));
    let names: Vec<String> = fleet.all().into_iter().map(|info| info.name).collect();
    assert_eq!(names, ["added", "changed", "described", "same"]);
    let connected: Vec<String> = fleet.connected().iter().map(|(entry, _)| entry.name.clone()).collect();
    assert_eq!(connected, names);
    let mut stops: Vec<_> = audit
        .collected()
        .into_iter()
        .filter(|event| event.kind == AuditKind::ServerStopped)
        .map(|event| format!("{} {}", event.detail["server"], event.outcome))
        .collect();
    stops.sort();
    assert_eq!(stops, [r#""changed" restart"#, r#""removed" stopped"#]);
}

#[tokio::test(start_paused = true)]
async fn connecting_server_can_be_disabled_and_enabled() {
    let servers = FakeServers::new();
    servers.script("hangs", [StartScript::Hangs(Phase::DepInstall), StartScript::Succeeds(HEALTHY)]);
    let fleet = servers.fleet(&Audit::disabled());
    fleet.apply(vec![disabled("off"), entry("hangs")]);
    wait_seconds(3).await;
    assert_eq!((status(&fleet, "off"), status(&fleet, "hangs")), ("disabled", "connecting"));
    fleet.apply(vec![disabled("off"), disabled("hangs")]);
    wait_seconds(0).await;
    assert_eq!((status(&fleet, "hangs"), servers.alive()), ("disabled", (0, 0)));
    wait_seconds(600).await;
    assert_eq!(servers.starts("hangs"), [0]);
    fleet.apply(entries(&["hangs", "off"]));
    wait_seconds(1).await;
    assert_eq!((status(&fleet, "off"), status(&fleet, "hangs")), ("connected", "connected"));
}

#[tokio::test(start_paused = true)]
async fn disabled_server_is_not_retried() {
    let servers = FakeServers::new();
    servers.script("bad", [fails(Phase::McpInit)]);
    let fleet = servers.fleet(&Audit::disabled());
    fleet.apply(entries(&["bad"]));
    wait_seconds(3).await;
    fleet.apply(vec![disabled("bad")]);
    wait_seconds(1).await;
    let changes = fleet.changes();
    wait_seconds(600).await;
    assert!(!changes.has_changed().unwrap(), "an idle server has no timer");
    assert_eq!(servers.starts("bad"), [0, 2]);
    assert_eq!((status(&fleet, "bad"), info(&fleet, "bad").error), ("disabled", None));
}

#[tokio::test(start_paused = true)]
async fn changed_entry_of_a_failed_server_resets_its_attempts() {
    let servers = FakeServers::new();
    servers.script("bad", [fails(Phase::McpInit)]);
    let fleet = servers.fleet(&Audit::disabled());
    fleet.apply(entries(&["bad"]));
    wait_seconds(100).await;
    fleet.apply(vec![with_argument("bad", "--better")]);
    wait_seconds(100).await;
    assert_eq!(servers.starts("bad"), [0, 2, 6, 14, 100, 102, 106, 114]);
}

#[tokio::test(start_paused = true)]
async fn renamed_server_starts_only_after_its_old_process_has_ended() {
    let servers = FakeServers::new();
    servers.script("first", [StartScript::Succeeds(Behavior { ignores_stop: true, ..HEALTHY })]);
    let fleet = servers.fleet(&Audit::disabled());
    fleet.apply(entries(&["first"]));
    wait_seconds(10).await;
    fleet.apply(vec![]);
    wait_seconds(1).await;
    assert!(fleet.all().is_empty());
    fleet.apply(vec![ServerEntry { name: "renamed".into(), ..entry("first") }]);
    wait_seconds(5).await;
    assert_eq!((servers.starts("renamed").len(), status(&fleet, "renamed")), (0, "connecting"));
    wait_seconds(5).await;
    assert_eq!(servers.starts("renamed"), [18], "a server that ignores the stop is dropped after 8 s");
    assert_eq!((status(&fleet, "renamed"), servers.alive()), ("connected", (0, 1)));
    assert_eq!(info(&fleet, "uuid-of-first").name, "renamed");
}

#[tokio::test(start_paused = true)]
async fn duplicate_names_and_entries_over_the_limit_are_skipped() {
    let servers = FakeServers::new();
    let options = FleetOptions { max_servers: 2, ..FleetOptions::default() };
    let fleet = Fleet::new(servers.clone(), Audit::disabled(), options);
    let twin = ServerEntry { name: "b".into(), ..entry("a") };
    let skipped = fleet.apply(vec![entry("a"), with_argument("a", "other"), twin, entry("c"), entry("d")]);
    let reasons: Vec<String> = skipped.iter().map(|skipped| format!("{}: {}", skipped.name, skipped.reason)).collect();
    assert_eq!(
        reasons,
        [
            "a: an earlier entry has the same name",
            "b: an earlier entry has the same uuid uuid-of-a",
            "d: the limit is 2 servers"
        ]
    );
    wait_seconds(1).await;
    assert_eq!(fleet.all().len(), 2);
    assert_eq!(servers.alive(), (0, 2));
}

#[tokio::test(start_paused = true)]
async fn requested_restart_gives_a_new_link_and_resets_the_attempts() {
    let servers = FakeServers::new();
    servers.script("bad", [fails(Phase::McpInit)]);
    let fleet = servers.fleet(&Audit::disabled());
    fleet.apply(vec![entry("good"), entry("bad"), disabled("off")]);
    wait_seconds(20).await;
    let old = fleet.link("good").unwrap();
    assert!(fleet.restart("good").await && fleet.restart("bad").await);
    assert!(!fleet.restart("off").await && !fleet.restart("missing").await);
    assert!(fleet.link("good").is_none());
    let new = fleet.await_link("good", Duration::from_secs(5)).await.unwrap();
    assert!(!Arc::ptr_eq(&old, &new));
    wait_seconds(60).await;
    assert_eq!(servers.starts("bad"), [0, 2, 6, 14, 20, 22, 26, 34]);
}

#[tokio::test(start_paused = true)]
async fn subscribers_are_notified_of_every_change() {
    let servers = FakeServers::new();
    let fleet = servers.fleet(&Audit::disabled());
    let mut changes = fleet.changes();
    let mut was_notified = || {
        let is_new = changes.has_changed().unwrap();
        changes.borrow_and_update();
        is_new
    };
    fleet.apply(entries(&["a"]));
    wait_seconds(1).await;
    assert!(was_notified(), "added");
    fleet.apply(vec![disabled("a")]);
    wait_seconds(2).await;
    assert!(was_notified(), "disabled");
    fleet.apply(vec![]);
    wait_seconds(1).await;
    assert!(was_notified(), "removed");
    fleet.mark_changed();
    assert!(was_notified(), "marked as changed");
    wait_seconds(600).await;
    assert!(!was_notified(), "nothing has changed");
}

#[tokio::test(start_paused = true)]
async fn server_that_connects_while_it_is_disabled_is_stopped() {
    let servers = FakeServers::new();
    servers.script("late", [StartScript::SucceedsAfter(Duration::from_secs(3), HEALTHY)]);
    let fleet = servers.fleet(&Audit::disabled());
    fleet.apply(entries(&["late"]));
    tokio::time::sleep(Duration::from_secs(3)).await;
    fleet.apply(vec![disabled("late")]);
    wait_seconds(2).await;
    assert_eq!(servers.times("late", "stopped"), [4], "stopped cleanly, not only dropped");
    assert_eq!((status(&fleet, "late"), servers.alive()), ("disabled", (0, 0)));
}
