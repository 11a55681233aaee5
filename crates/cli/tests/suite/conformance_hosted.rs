//! The official conformance suite against a server that has all its fixtures, directly and through the gateway: what
//! it finds must be the same, check for check, in both protocol eras.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;

use ringfence_testkit::conformance_server::serve_http;
use ringfence_testkit::conformance_suite::{Check, Era, LEGACY, MODERN, assert_only_known_failures, run};
use ringfence_testkit::{Server, download_cache};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

#[test]
fn the_fixture_has_all_that_the_older_era_asks_for() {
    conform_directly("the_fixture_has_all_that_the_older_era_asks_for", LEGACY);
}

#[test]
fn the_fixture_has_all_that_the_newer_era_asks_for() {
    conform_directly("the_fixture_has_all_that_the_newer_era_asks_for", MODERN);
}

#[test]
fn the_gateway_hides_nothing_of_the_older_era() {
    compare("the_gateway_hides_nothing_of_the_older_era", LEGACY);
}

#[test]
fn the_gateway_hides_nothing_of_the_newer_era() {
    compare("the_gateway_hides_nothing_of_the_newer_era", MODERN);
}

fn conform_directly(test: &str, era: Era) {
    let Some(cache) = download_cache(test) else { return };
    assert_only_known_failures(&run(&cache, &Fixture::start().url, era), "fixture.txt", era);
}

fn compare(test: &str, era: Era) {
    let Some(cache) = download_cache(test) else { return };
    // One server for each run: its notifications go to all subscribers, and the runs take place at the same time.
    let (fixture, other_fixture) = (Fixture::start(), Fixture::start());
    let directory = tempfile::tempdir().expect("a directory");
    let gateway = Gateway::before(&other_fixture.url, directory.path());
    let (directly, through) = std::thread::scope(|scope| {
        let directly = scope.spawn(|| run(&cache, &fixture.url, era));
        let through = run(&cache, &gateway.url(), era);
        (directly.join().expect("the run against the server"), through)
    });
    let (directly, through) = (verdicts(&directly), verdicts(&through));
    let lost: Vec<_> = without(&directly, &through);
    let new: Vec<_> = without(&through, &directly);
    assert!(lost.is_empty() && new.is_empty(), "only directly: {lost:#?}\nonly through the gateway: {new:#?}");
}

/// What the suite noted in passing is left out: it depends on how packets arrive.
fn verdicts(checks: &[Check]) -> Vec<&Check> {
    let mut verdicts: Vec<&Check> = checks.iter().filter(|check| check.status != "INFO").collect();
    verdicts.sort();
    verdicts
}

/// The checks of one list that another lacks; a check that is made twice counts twice.
fn without<'a>(list: &[&'a Check], other: &[&Check]) -> Vec<&'a Check> {
    let mut other = other.to_vec();
    let is_lacking = |check: &&&Check| match other.iter().position(|found| found == *check) {
        Some(index) => {
            other.swap_remove(index);
            false
        }
        None => true,
    };
    list.iter().filter(is_lacking).copied().collect()
}

/// The fixture server, in this process. Dropped, it is gone.
struct Fixture {
    url: String,
    _runtime: Runtime,
}

impl Fixture {
    fn start() -> Self {
        let runtime = Runtime::new().expect("a runtime");
        let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).expect("a port is free");
        let url = format!("http://{}/mcp", listener.local_addr().expect("it has an address"));
        runtime.spawn(serve_http(listener));
        Self { url, _runtime: runtime }
    }
}

/// A gateway that offers one server as if it were that server: unprefixed, and without tools of its own.
struct Gateway(Server);

impl Gateway {
    fn before(url: &str, directory: &Path) -> Self {
        let config = directory.join("ringfence.toml");
        let profile = "[profiles.fixture]\nservers = [\"fixture\"]\nprefix = false\nown_tools = false\n";
        fs::write(&config, format!("[servers.fixture]\nurl = \"{url}\"\n\n{profile}")).expect("it is written");
        Self(Server::start(&["--config", config.to_str().expect("it is text")], &[]))
    }

    fn url(&self) -> String {
        format!("http://{}/mcp/fixture", self.0.address)
    }
}

#[test]
fn a_check_that_differs_is_found() {
    let check = |id: &str, status: &str| Check { scenario: "s".into(), id: id.into(), status: status.into() };
    let directly = [check("a", "SUCCESS"), check("b", "SUCCESS"), check("b", "SUCCESS"), check("i", "INFO")];
    let through = [check("b", "SUCCESS"), check("a", "FAILURE")];
    let (directly, through) = (verdicts(&directly), verdicts(&through));
    assert_eq!(without(&directly, &through), [&check("a", "SUCCESS"), &check("b", "SUCCESS")]);
    assert_eq!(without(&through, &directly), [&check("a", "FAILURE")]);
    assert!(without(&directly, &directly).is_empty());
}
