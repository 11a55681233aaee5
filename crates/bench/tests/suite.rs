//! Runs `ringfence-bench` with few samples: checks that everything is measured, not how fast it is.
//!
//! The program `ringfence` must have been built into the same directory; `cargo test --workspace` does that.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use ringfence_testkit::{User, skip};
use serde_json::Value;

const BENCH: &str = env!("CARGO_BIN_EXE_ringfence-bench");

const SECTIONS: [&str; 7] = ["warm", "cold", "round_trip", "burst", "density", "flood", "server"];

fn command(who: User, temporary: &Path, arguments: &[&str]) -> Command {
    let mut command = who.program(&programs().join("ringfence-bench"));
    command.args(arguments).env("TMPDIR", temporary).stdout(Stdio::piped());
    command
}

/// Returns the directory of `ringfence-bench` and `ringfence`: a copy if other users cannot enter the build directory.
fn programs() -> &'static Path {
    static PROGRAMS: OnceLock<PathBuf> = OnceLock::new();
    PROGRAMS.get_or_init(|| {
        use std::os::unix::fs::PermissionsExt as _;

        let built = Path::new(BENCH).parent().expect("a program is in a directory");
        assert!(built.join("ringfence").is_file(), "build the program to measure: cargo build -p ringfence");
        let is_open = |path: &Path| path.metadata().is_ok_and(|found| found.permissions().mode() & 0o1 != 0);
        if built.ancestors().all(is_open) {
            return built.to_owned();
        }
        // Not removed at the end: no test knows that it is the last one.
        let copies = tempfile::Builder::new().prefix("ringfence-test-bin-").tempdir_in("/tmp");
        let copies = copies.expect("/tmp is writable").keep();
        std::fs::set_permissions(&copies, std::fs::Permissions::from_mode(0o755)).expect("the directory is ours");
        for name in ["ringfence", "ringfence-bench"] {
            std::fs::copy(built.join(name), copies.join(name)).expect("the program is readable");
        }
        copies
    })
}

fn row<'a>(report: &'a Value, section: &str, label: &str) -> &'a Value {
    let rows = report["sections"][section]["rows"].as_array().expect("rows are an array");
    rows.iter().find(|row| row["what"] == label).unwrap_or_else(|| panic!("{section} has no {label}: {rows:#?}"))
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("not a number: {value}"))
}

#[test]
fn every_section_is_measured_and_compared() {
    let test = "every_section_is_measured_and_compared";
    if let Some(reason) = User::Root.unavailable() {
        return skip(test, &reason);
    }
    let directory = User::Root.directory();
    let output = command(User::Root, directory.path(), &["--quick", "--json"]).output().expect("the program starts");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    let sections = report["sections"].as_object().expect("sections are an object");
    assert_eq!(sections.keys().map(String::as_str).collect::<Vec<_>>(), SECTIONS);
    assert_eq!(report["quick"], true);
    assert_eq!(report["host"]["version"], env!("CARGO_PKG_VERSION"));
    for (section, label, samples) in [
        ("warm", "ringfence, python", 3),
        ("cold", "ringfence, python", 3),
        ("round_trip", "ringfence, x+=1", 20),
        ("burst", "ringfence, 8 sessions at once", 1),
        ("flood", "ringfence, 32 MiB drained", 1),
        ("server", "ringfence, start to /health", 1),
    ] {
        let row = row(&report, section, label);
        assert_eq!(row["samples"].as_array().map(Vec::len), Some(samples), "{row:#}");
        assert!(number(&row["value"]) > 0.0 && number(&row["ratio"]["value"]) > 0.0, "{row:#}");
        assert!(!row["targets"].as_array().expect("targets are an array").is_empty(), "{row:#}");
    }
    assert_eq!(row(&report, "burst", "failed sessions, all bursts")["value"], 0.0);
    assert_eq!(row(&report, "density", "sessions that still respond, of 8")["value"], 8.0);
    // Eight sessions and the pool. No interpreter is smaller than 0.5 MB, and a bare one has far less than 100.
    let idle = row(&report, "density", "idle session, PSS");
    assert!(idle["samples"].as_array().expect("samples are an array").len() >= 8, "{idle:#}");
    assert!((0.5..100.0).contains(&number(&idle["value"])), "{idle:#}");
    let size = std::fs::metadata(programs().join("ringfence")).expect("ringfence was built").len();
    let shown = number(&row(&report, "server", "program size")["value"]);
    assert!((shown * 1e6 - f64::from(u32::try_from(size).expect("less than 4 GiB"))).abs() < 1e5, "{shown}");
}

#[test]
fn ordinary_user_gets_a_table_and_no_files_or_processes_are_left() {
    let test = "ordinary_user_gets_a_table_and_no_files_or_processes_are_left";
    if let Some(reason) = User::Plain.unavailable() {
        return skip(test, &reason);
    }
    let directory = User::Plain.directory();
    let arguments = ["--quick", "--sessions", "2", "round-trip", "density"];
    let output = command(User::Plain, directory.path(), &arguments).output().expect("the program starts");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("the table is UTF-8");
    let lines = text.lines().filter(|line| line.starts_with('|'));
    let rows: Vec<Vec<&str>> = lines.map(|line| line.split('|').map(str::trim).collect()).collect();
    assert!(rows.iter().all(|row| row.len() == 9), "{text}");
    let find = |label: &str| rows.iter().find(|row| row[2] == label).unwrap_or_else(|| panic!("no {label}: {text}"));
    assert!(find("ringfence, x+=1")[5].ends_with("× bare rmcp, echo"), "{text}");
    assert_eq!(find("sessions that still respond, of 2")[3..8], ["2", "", "", "≥ 2", "met"], "{text}");
    assert_eq!(std::fs::read_dir(directory.path()).expect("the directory exists").count(), 0);
    assert_eq!(servers(directory.path()), 0);
}

#[test]
fn servers_end_when_the_benchmark_is_killed() {
    let directory = User::Root.directory();
    let mut child = command(User::Root, directory.path(), &["warm"]).stderr(Stdio::null()).spawn().expect("it starts");
    let wait_for = |count: usize| {
        // Longer than a server may take to stop all sessions.
        let deadline = Instant::now() + Duration::from_secs(90);
        while servers(directory.path()) != count {
            assert!(Instant::now() < deadline, "the number of servers is not {count}");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    wait_for(1);
    child.kill().expect("the benchmark runs");
    child.wait().expect("the benchmark was killed");
    wait_for(0);
}

#[test]
fn tool_calls_are_measured_directly_and_through_each_installed_gateway() {
    let directory = User::Root.directory();
    let mut command = command(User::Root, directory.path(), &["--quick", "--json", "gateway"]);
    let cache = std::env::var("RINGFENCE_TEST_CACHE").ok();
    if let Some(cache) = &cache {
        let path = format!("{cache}/mcp-proxy/bin:{cache}/servers/node_modules/.bin:/usr/local/bin:/usr/bin:/bin");
        command.env("PATH", path);
    }
    let output = command.output().expect("the program starts");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    assert_eq!(report["sections"].as_object().expect("sections are an object").len(), 1);
    for direct in ["direct, HTTP", "direct, stdio"] {
        assert_eq!(row(&report, "gateway", direct)["samples"].as_array().map(Vec::len), Some(20));
    }
    for proxy in ["mcp-proxy, stdio", "supergateway, stdio"].iter().filter(|_| cache.is_some()) {
        assert!(number(&row(&report, "gateway", proxy)["ratio"]["value"]) > 0.0);
    }
    let section = &report["sections"]["gateway"];
    let is_reported = |name: &str| section.to_string().matches(&format!("\"{name}")).count() > 0;
    for name in ["ringfence, HTTP", "ringfence, stdio", "mcp-proxy, stdio", "supergateway, stdio"] {
        assert!(is_reported(name), "the report has neither a row nor a note for {name}: {section:#}");
    }
    assert_eq!(std::fs::read_dir(directory.path()).expect("the directory exists").count(), 0);
    assert_eq!(servers(directory.path()), 0);
}

#[test]
fn requests_of_sessions_are_measured_beside_direct_ones() {
    let test = "requests_of_sessions_are_measured_beside_direct_ones";
    for user in [User::Root, User::Plain] {
        if user.skip_if_unavailable(test) {
            continue;
        }
        let directory = user.directory();
        let mut command = command(user, directory.path(), &["--quick", "--json", "egress"]);
        let output = command.output().expect("the program starts");
        let report: Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
        assert_eq!(report["sections"]["egress"]["left_out"], serde_json::json!([]), "{user:?}: {report:#}");
        for what in ["request on a kept connection", "lookup, connection and request", "download of 8 MiB"] {
            let ours = row(&report, "egress", &format!("ringfence, {what}"));
            assert!(number(&ours["value"]) > 0.0 && number(&ours["ratio"]["value"]) > 0.0, "{ours:#}");
            assert_eq!(ours["ratio"]["to"], format!("direct, {what}"));
        }
        assert_eq!(row(&report, "egress", "ringfence, download of 8 MiB")["targets"][0]["limit"], 0.8);
        assert_eq!(std::fs::read_dir(directory.path()).expect("the directory exists").count(), 0);
    }
}

#[test]
fn installations_are_measured_or_the_reason_is_reported() {
    let test = "installations_are_measured_or_the_reason_is_reported";
    if User::Root.skip_if_unavailable(test) {
        return;
    }
    let directory = User::Root.directory();
    let mut command = command(User::Root, directory.path(), &["--quick", "--json", "packages"]);
    let registries =
        [("RINGFENCE_TEST_PYTHON_INDEX", "PIP_INDEX_URL"), ("RINGFENCE_TEST_NPM_REGISTRY", "npm_config_registry")];
    let value = |name| std::env::var(name).ok().filter(|value: &String| !value.is_empty());
    let registries = registries.map(|(name, variable)| Some((variable, value(name)?)));
    command
        .envs(registries.into_iter().flatten())
        .envs(std::env::var("SSL_CERT_FILE").map(|path| ("SSL_CERT_FILE", path)));
    let output = command.output().expect("the program starts");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    for what in ["ringfence, pip install requests", "ringfence, npm install left-pad"] {
        let section = &report["sections"]["packages"];
        let is_row = section["rows"].to_string().contains(what);
        assert!(is_row || section["left_out"].to_string().contains(what), "{what}: {section:#}");
    }
    assert_eq!(std::fs::read_dir(directory.path()).expect("the directory exists").count(), 0);
}

#[test]
fn missing_ringfence_is_an_error_except_for_benchmarks_that_do_not_start_it() {
    let directory = User::Root.directory();
    let missing = directory.path().join("ringfence").display().to_string();
    let run = |benchmark: &str| {
        let arguments = ["--quick", "--program", &missing, benchmark];
        command(User::Root, directory.path(), &arguments).output().expect("the program starts")
    };
    let output = run("warm");
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains(&format!("error: program not found: {missing}\nhint: build it with")), "{stderr}");
    let output = run("search");
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("recall@5"), "{output:?}");
}

/// Counts the servers of a run whose temporary directory this is.
fn servers(temporary: &Path) -> usize {
    let processes = std::fs::read_dir("/proc").expect("/proc is mounted").flatten();
    let commands = processes.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    let name = temporary.to_str().expect("the path is UTF-8");
    commands.filter(|command| String::from_utf8_lossy(command).contains(name)).count()
}
