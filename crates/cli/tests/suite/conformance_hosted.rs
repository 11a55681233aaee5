//! The official conformance suite against a server with all fixtures that the suite expects, directly and through the
//! gateway: every check must have the same result in both runs, in both protocol eras.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;

use ringfence_testkit::conformance_server::serve_http;
use ringfence_testkit::conformance_suite::{Check, Era, LEGACY, MODERN, assert_only_known_failures, run};
use ringfence_testkit::{Server, download_cache};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

#[test]
fn fixture_conforms_in_legacy_era() {
    assert_fixture_conforms("fixture_conforms_in_legacy_era", LEGACY);
}

#[test]
fn fixture_conforms_in_modern_era() {
    assert_fixture_conforms("fixture_conforms_in_modern_era", MODERN);
}

#[test]
fn gateway_changes_no_check_in_legacy_era() {
    assert_gateway_is_transparent("gateway_changes_no_check_in_legacy_era", LEGACY);
}

#[test]
fn gateway_changes_no_check_in_modern_era() {
    assert_gateway_is_transparent("gateway_changes_no_check_in_modern_era", MODERN);
}

fn assert_fixture_conforms(test: &str, era: Era) {
    let Some(cache) = download_cache(test) else { return };
    assert_only_known_failures(&run(&cache, &Fixture::start().url, era), "fixture.txt", era);
}

fn assert_gateway_is_transparent(test: &str, era: Era) {
    let Some(cache) = download_cache(test) else { return };
    // One server for each run: its notifications go to all subscribers, and both runs happen at the same time.
    let (fixture, other_fixture) = (Fixture::start(), Fixture::start());
    let directory = tempfile::tempdir().expect("temporary directory");
    let gateway = Gateway::start(&other_fixture.url, directory.path());
    let (direct, through) = std::thread::scope(|scope| {
        let direct = scope.spawn(|| run(&cache, &fixture.url, era));
        let through = run(&cache, &gateway.url(), era);
        (direct.join().expect("direct run completes"), through)
    });
    let (direct, through) = (comparable_checks(&direct), comparable_checks(&through));
    let only_direct: Vec<_> = missing_checks(&direct, &through);
    let only_through: Vec<_> = missing_checks(&through, &direct);
    assert!(
        only_direct.is_empty() && only_through.is_empty(),
        "only directly: {only_direct:#?}\nonly through the gateway: {only_through:#?}"
    );
}

/// Sorted checks without those of status INFO, which depend on the timing of packets.
fn comparable_checks(checks: &[Check]) -> Vec<&Check> {
    let mut comparable: Vec<&Check> = checks.iter().filter(|check| check.status != "INFO").collect();
    comparable.sort();
    comparable
}

/// Checks of one list that are missing in another. A check that appears twice counts twice.
fn missing_checks<'a>(list: &[&'a Check], other: &[&Check]) -> Vec<&'a Check> {
    let mut other = other.to_vec();
    let is_missing = |check: &&&Check| match other.iter().position(|found| found == *check) {
        Some(index) => {
            other.swap_remove(index);
            false
        }
        None => true,
    };
    list.iter().filter(is_missing).copied().collect()
}

/// The fixture server, in this process. It stops when dropped.
struct Fixture {
    url: String,
    _runtime: Runtime,
}

impl Fixture {
    fn start() -> Self {
        let runtime = Runtime::new().expect("tokio runtime");
        let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).expect("free port");
        let url = format!("http://{}/mcp", listener.local_addr().expect("listener has an address"));
        runtime.spawn(serve_http(listener));
        Self { url, _runtime: runtime }
    }
}

/// A gateway that imitates one server: it offers that server's tools without prefix, and no built-in tools.
struct Gateway(Server);

impl Gateway {
    fn start(url: &str, directory: &Path) -> Self {
        let config = directory.join("ringfence.toml");
        let profile = "[profiles.fixture]\nservers = [\"fixture\"]\nprefix = false\nown_tools = false\n";
        fs::write(&config, format!("[servers.fixture]\nurl = \"{url}\"\n\n{profile}")).expect("file is written");
        Self(Server::start(&["--config", config.to_str().expect("path is UTF-8")], &[]))
    }

    fn url(&self) -> String {
        format!("http://{}/mcp/fixture", self.0.address)
    }
}

#[test]
fn differing_checks_are_detected() {
    let check = |id: &str, status: &str| Check { scenario: "s".into(), id: id.into(), status: status.into() };
    let direct = [check("a", "SUCCESS"), check("b", "SUCCESS"), check("b", "SUCCESS"), check("i", "INFO")];
    let through = [check("b", "SUCCESS"), check("a", "FAILURE")];
    let (direct, through) = (comparable_checks(&direct), comparable_checks(&through));
    assert_eq!(missing_checks(&direct, &through), [&check("a", "SUCCESS"), &check("b", "SUCCESS")]);
    assert_eq!(missing_checks(&through, &direct), [&check("a", "FAILURE")]);
    assert!(missing_checks(&direct, &direct).is_empty());
}
