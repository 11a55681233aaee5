//! The official conformance suite of MCP, against a real server, in both protocol eras.
//!
//! The suite expects a server with certain tools, prompts and resources. The checks that fail without them are listed in
//! `tests/conformance/expected.txt`: no other check may fail, and no listed one may pass.

use ringfence_testkit::conformance_suite::{Era, LEGACY, MODERN, assert_only_known_failures, run};
use ringfence_testkit::{Server, download_cache};

#[test]
fn the_older_era_conforms() {
    conform("the_older_era_conforms", LEGACY);
}

#[test]
fn the_newer_era_conforms() {
    conform("the_newer_era_conforms", MODERN);
}

fn conform(test: &str, era: Era) {
    let Some(cache) = download_cache(test) else { return };
    let server = Server::start(&[], &[]);
    let checks = run(&cache, &format!("http://{}/mcp", server.address), era);
    assert_only_known_failures(&checks, "expected.txt", era);
}
