//! The official conformance suite of MCP, against a real server, in both protocol eras.
//!
//! The suite expects a server with certain tools, prompts and resources. `tests/conformance/expected.txt` lists the
//! checks that fail without them: no other check may fail, and no listed check may pass.

use ringfence_testkit::conformance_suite::{Era, LEGACY, MODERN, assert_only_known_failures, run};
use ringfence_testkit::{Server, download_cache};

#[test]
fn server_conforms_in_legacy_era() {
    assert_conforms("server_conforms_in_legacy_era", LEGACY);
}

#[test]
fn server_conforms_in_modern_era() {
    assert_conforms("server_conforms_in_modern_era", MODERN);
}

fn assert_conforms(test: &str, era: Era) {
    let Some(cache) = download_cache(test) else { return };
    let server = Server::start(&[], &[]);
    let checks = run(&cache, &format!("http://{}/mcp", server.address), era);
    assert_only_known_failures(&checks, "expected.txt", era);
}
