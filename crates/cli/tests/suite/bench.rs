//! `ringfence bench`, as quickly as it goes: that everything is measured, not how fast it is.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ringfence_testkit::{User, skip};
use serde_json::Value;

use crate::BINARY;

const SECTIONS: [&str; 7] = ["warm", "cold", "round_trip", "burst", "density", "flood", "server"];

fn command(who: User, directory: &Path, arguments: &[&str]) -> Command {
    let mut command = who.ringfence();
    command.arg("bench").args(arguments).env("TMPDIR", directory).stdout(Stdio::piped());
    command
}

fn row<'a>(report: &'a Value, section: &str, what: &str) -> &'a Value {
    let rows = report["sections"][section]["rows"].as_array().expect("rows");
    rows.iter().find(|row| row["what"] == what).unwrap_or_else(|| panic!("{section} has no {what}: {rows:#?}"))
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

#[test]
fn everything_is_measured_beside_its_peers() {
    let test = "everything_is_measured_beside_its_peers";
    if let Some(reason) = User::Root.unavailable() {
        return skip(test, &reason);
    }
    let directory = User::Root.directory();
    let output = command(User::Root, directory.path(), &["--quick", "--json"]).output().expect("it runs");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    let sections = report["sections"].as_object().expect("an object");
    assert_eq!(sections.keys().map(String::as_str).collect::<Vec<_>>(), SECTIONS);
    assert_eq!(report["quick"], true);
    for (section, what, samples) in [
        ("warm", "ringfence, python", 3),
        ("cold", "ringfence, python", 3),
        ("round_trip", "ringfence, x+=1", 20),
        ("burst", "ringfence, 8 sessions at once", 1),
        ("flood", "ringfence, 32 MiB drained", 1),
        ("server", "ringfence, start to /health", 1),
    ] {
        let row = row(&report, section, what);
        assert_eq!(row["samples"].as_array().map(Vec::len), Some(samples), "{row:#}");
        assert!(number(&row["value"]) > 0.0 && number(&row["ratio"]["value"]) > 0.0, "{row:#}");
        assert!(!row["targets"].as_array().expect("targets").is_empty(), "{row:#}");
    }
    assert_eq!(row(&report, "burst", "failed, of all bursts")["value"], 0.0);
    assert_eq!(row(&report, "density", "of 8 sessions still answer")["value"], 8.0);
    // Eight sessions, and those that wait; no interpreter is smaller, and a bare one is not much larger.
    let idle = row(&report, "density", "idle session, PSS");
    assert!(idle["samples"].as_array().expect("samples").len() >= 8, "{idle:#}");
    assert!((0.5..100.0).contains(&number(&idle["value"])), "{idle:#}");
    let size = std::fs::metadata(BINARY).expect("it is there").len();
    let shown = number(&row(&report, "server", "size of the program")["value"]);
    assert!((shown * 1e6 - f64::from(u32::try_from(size).expect("it is small"))).abs() < 1e5, "{shown}");
}

#[test]
fn an_ordinary_user_gets_a_table_and_leaves_nothing() {
    let test = "an_ordinary_user_gets_a_table_and_leaves_nothing";
    if let Some(reason) = User::Plain.unavailable() {
        return skip(test, &reason);
    }
    let directory = User::Plain.directory();
    let arguments = ["--quick", "--sessions", "2", "round-trip", "density"];
    let output = command(User::Plain, directory.path(), &arguments).output().expect("it runs");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("it is text");
    let lines = text.lines().filter(|line| line.starts_with('|'));
    let rows: Vec<Vec<&str>> = lines.map(|line| line.split('|').map(str::trim).collect()).collect();
    assert!(rows.iter().all(|row| row.len() == 9), "{text}");
    let found = |what: &str| rows.iter().find(|row| row[2] == what).unwrap_or_else(|| panic!("no {what}: {text}"));
    assert!(found("ringfence, x+=1")[5].ends_with("× bare rmcp, echo"), "{text}");
    assert_eq!(found("of 2 sessions still answer")[3..8], ["2", "", "", "≥ 2", "met"], "{text}");
    assert_eq!(std::fs::read_dir(directory.path()).expect("it is there").count(), 0);
    assert_eq!(servers(directory.path()), 0);
}

#[test]
fn its_servers_end_with_it_even_when_it_is_killed() {
    let directory = User::Root.directory();
    let mut child = command(User::Root, directory.path(), &["warm"]).stderr(Stdio::null()).spawn().expect("it runs");
    let wait_for = |count: usize| {
        let deadline = Instant::now() + Duration::from_secs(30);
        while servers(directory.path()) != count {
            assert!(Instant::now() < deadline, "there are not {count} servers");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    wait_for(1);
    child.kill().expect("it lives");
    child.wait().expect("it ends");
    wait_for(0);
}

#[test]
fn calls_of_tools_are_measured_directly_and_through_each_gateway_that_is_there() {
    let directory = User::Root.directory();
    let mut command = command(User::Root, directory.path(), &["--quick", "--json", "gateway"]);
    let cache = std::env::var("RINGFENCE_TEST_CACHE").ok();
    if let Some(cache) = &cache {
        let path = format!("{cache}/mcp-proxy/bin:{cache}/servers/node_modules/.bin:/usr/local/bin:/usr/bin:/bin");
        command.env("PATH", path);
    }
    let output = command.output().expect("it runs");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    assert_eq!(report["sections"].as_object().expect("an object").len(), 1);
    for direct in ["directly, HTTP", "directly, stdio"] {
        assert_eq!(row(&report, "gateway", direct)["samples"].as_array().map(Vec::len), Some(20));
    }
    for peer in ["mcp-proxy, stdio", "supergateway, stdio"].iter().filter(|_| cache.is_some()) {
        assert!(number(&row(&report, "gateway", peer)["ratio"]["value"]) > 0.0);
    }
    let section = &report["sections"]["gateway"];
    let is_told = |name: &str| section.to_string().matches(&format!("\"{name}")).count() > 0;
    for name in ["ringfence, HTTP", "ringfence, stdio", "mcp-proxy, stdio", "supergateway, stdio"] {
        assert!(is_told(name), "nothing is said of {name}: {section:#}");
    }
    assert_eq!(std::fs::read_dir(directory.path()).expect("it is there").count(), 0);
    assert_eq!(servers(directory.path()), 0);
}

/// Servers of a run whose temporary files are here.
fn servers(directory: &Path) -> usize {
    let processes = std::fs::read_dir("/proc").expect("there is /proc").flatten();
    let commands = processes.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    let name = directory.to_str().expect("it is text");
    commands.filter(|command| String::from_utf8_lossy(command).contains(name)).count()
}
