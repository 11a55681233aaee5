//! Servers that start when they are used.

use std::time::Duration;

use ringfence_entries::{ServerEntry, StartPolicy, StdioSettings, Transport};
use ringfence_servers::Phase;
use ringfence_store::Audit;

use super::fake::{FakeServers, HEALTHY, StartScript, entry, fails, on_demand, status, wait_seconds};

const LONG: Duration = Duration::from_secs(100);

fn with_argument(name: &str) -> ServerEntry {
    let mut settings = StdioSettings::new("server");
    settings.args.push("--fast".into());
    ServerEntry { transport: Transport::Stdio(settings.into()), ..on_demand(name) }
}

#[tokio::test(start_paused = true)]
async fn unused_server_starts_when_it_is_called_and_then_stays_connected() {
    let servers = FakeServers::new();
    let fleet = servers.fleet(&Audit::disabled());
    fleet.apply(vec![on_demand("lazy"), entry("eager")]);
    fleet.wait_for_first_attempts(LONG).await;
    wait_seconds(100).await;
    assert_eq!((status(&fleet, "lazy"), servers.starts("lazy")), ("idle", vec![]));
    let (first, second) = tokio::join!(fleet.await_link("lazy", LONG), fleet.await_link("lazy", LONG));
    assert!(first.is_ok() && second.is_ok());
    fleet.apply(vec![on_demand("lazy"), entry("eager")]);
    wait_seconds(600).await;
    assert_eq!((status(&fleet, "lazy"), servers.starts("lazy")), ("connected", vec![100]));
}

#[tokio::test(start_paused = true)]
async fn used_server_is_retried_like_any_other() {
    let servers = FakeServers::new();
    servers.script("lazy", [fails(Phase::McpInit), StartScript::Succeeds(HEALTHY)]);
    let fleet = servers.fleet(&Audit::disabled());
    fleet.apply(vec![on_demand("lazy")]);
    assert!(fleet.await_link("lazy", LONG).await.is_ok());
    assert_eq!(servers.starts("lazy"), [0, 2]);
}

#[tokio::test(start_paused = true)]
async fn changed_server_waits_for_its_next_use() {
    let servers = FakeServers::new();
    let fleet = servers.fleet(&Audit::disabled());
    fleet.apply(vec![on_demand("lazy")]);
    assert!(fleet.await_link("lazy", LONG).await.is_ok());
    fleet.apply(vec![with_argument("lazy")]);
    wait_seconds(60).await;
    assert_eq!((status(&fleet, "lazy"), servers.starts("lazy").len()), ("idle", 1));
    assert!(fleet.await_link("lazy", LONG).await.is_ok());
    fleet.apply(vec![on_demand("lazy")]);
    assert!(fleet.await_link("lazy", LONG).await.is_ok(), "a caller waits for the end of the previous process");
    assert_eq!(servers.starts("lazy").len(), 3);
}

#[tokio::test(start_paused = true)]
async fn restart_starts_an_unused_server() {
    let servers = FakeServers::new();
    let fleet = servers.fleet(&Audit::disabled());
    fleet.apply(vec![on_demand("lazy")]);
    wait_seconds(1).await;
    assert!(fleet.restart("lazy").await);
    wait_seconds(1).await;
    assert_eq!(status(&fleet, "lazy"), "connected");
}

#[tokio::test(start_paused = true)]
async fn unused_server_starts_when_its_entry_moves_to_another_source() {
    let servers = FakeServers::new();
    let fleet = servers.fleet(&Audit::disabled());
    fleet.apply(vec![on_demand("lazy")]);
    wait_seconds(1).await;
    fleet.apply(vec![ServerEntry { start: StartPolicy::AtOnce, ..on_demand("lazy") }]);
    wait_seconds(1).await;
    fleet.apply(vec![on_demand("lazy")]);
    wait_seconds(1).await;
    assert_eq!((status(&fleet, "lazy"), servers.starts("lazy")), ("connected", vec![1]));
}
