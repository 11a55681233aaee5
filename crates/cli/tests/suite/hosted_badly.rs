//! Faulty servers, each hosted beside a good one: the gateway handles the fault, and the good server keeps responding.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use ringfence_testkit::{Server, fixture_path, wait_until};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::BINARY;

/// A gateway that hosts a bad server and a good one.
struct Pair {
    server: Server,
    _directory: TempDir,
}

impl Pair {
    fn start(mode: &str, box_settings: &str) -> Self {
        let directory = tempfile::tempdir().expect("create a directory");
        let config = directory.path().join("ringfence.toml");
        let program = fixture_path("bad_server.py").display().to_string();
        let entry = |name: &str, mode: &str, box_settings: &str| {
            format!(
                "[servers.{name}]\ncommand = \"python3\"\nargs = [{program:?}, {mode:?}]\nbox = {{ {box_settings} }}\n"
            )
        };
        fs::write(&config, entry("bad", mode, box_settings) + &entry("good", "well", "")).expect("write the file");
        let pair = Self {
            server: Server::start(&["--config", config.to_str().expect("valid UTF-8")], &[]),
            _directory: directory,
        };
        pair.assert_good_server_responds();
        pair
    }

    fn assert_good_server_responds(&self) {
        let response = self.server.call("good__echo", &json!({"message": "good"}));
        assert_eq!(response["result"]["content"][0]["text"], "good", "{response}");
    }

    fn call(&self, tool: &str, arguments: &Value) -> Value {
        self.server.call(&format!("bad__{tool}"), arguments)
    }

    fn echo(&self) {
        let response = self.call("echo", &json!({"message": "bad"}));
        assert_eq!(response["result"]["content"][0]["text"], "bad", "{response}");
    }

    fn info(&self) -> Value {
        let headers = format!("Host: {}\r\n", self.server.address);
        let (status, body) = self.server.http("GET /v1/servers/bad", &headers, "");
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).expect("valid JSON")
    }

    /// Waits until the condition is true for the status of the bad server; returns that status.
    fn info_when(&self, condition: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let info = self.info();
            if condition(&info) {
                return info;
            }
            assert!(Instant::now() < deadline, "{info}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn tools(&self) -> Vec<String> {
        let list = self.server.request("tools/list", &json!({}));
        let tools = list["result"]["tools"].as_array().expect("an array");
        tools.iter().filter_map(|tool| tool["name"].as_str()?.strip_prefix("bad__")).map(str::to_owned).collect()
    }

    fn command(&self, arguments: &[&str]) -> String {
        let output = std::process::Command::new(BINARY)
            .args(arguments)
            .env("RINGFENCE_STATE_DIR", self.server.state.path())
            .output()
            .expect("run the command");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("valid UTF-8")
    }
}

#[test]
fn hanging_start_times_out_with_its_phase() {
    let pair = Pair::start("hang-at-start", "startup_timeout_sec = 1");
    let info = pair.info_when(|info| !info["error"].is_null());
    assert_eq!(info["error"]["phase"], "mcp_init", "{info}");
    assert_eq!(info["status"], "connecting", "{info}");
    pair.assert_good_server_responds();
}

#[test]
fn failed_start_is_reported_with_stderr() {
    let pair = Pair::start("die-at-start", "");
    let info = pair.info_when(|info| !info["error"].is_null());
    assert_eq!(info["error"]["phase"], "process_start", "{info}");
    let error = info["error"].to_string();
    assert!(error.contains("code 3") && error.contains("the table of contents is missing"), "{error}");
    pair.assert_good_server_responds();
    let refused = pair.call("echo", &json!({}));
    assert_eq!(refused["error"]["data"]["context"]["phase"], "process_start", "{refused}");
}

#[test]
fn crash_during_call_is_reported_and_next_call_works() {
    let pair = Pair::start("die-in-call", "");
    pair.echo();
    let lost = pair.call("die", &json!({}));
    let data = &lost["error"]["data"];
    assert_eq!((&data["context"]["phase"], &data["context"]["may_have_run"]), (&json!("tool_call"), &json!("true")));
    assert!(lost["error"]["message"].as_str().is_some_and(|message| message.contains("may have run")), "{lost}");
    pair.assert_good_server_responds();
    // A call before ringfence has noticed the end of the server fails with "has not run".
    pair.info_when(|info| info["status"] == "connected" && info["restart_count"] == 1);
    pair.echo();
}

#[test]
fn stderr_flood_is_bounded_and_does_not_block_servers() {
    let pair = Pair::start("flood-stderr", "");
    pair.echo();
    pair.assert_good_server_responds();
    let lines = pair.command(&["server", "logs", "bad"]);
    assert!(lines.lines().count() <= 500, "{}", lines.lines().count());
    assert!(pair.server.peak_bytes() < 200 << 20, "{}", pair.server.peak_bytes());
}

#[test]
fn line_of_100_mb_is_refused_and_server_stays_connected() {
    let pair = Pair::start("send-100-mb", "");
    pair.echo();
    let before = pair.server.peak_bytes();
    let refused = pair.call("flood", &json!({}));
    assert_eq!(refused["error"]["data"]["context"]["phase"], "tool_call", "{refused}");
    pair.assert_good_server_responds();
    pair.echo();
    assert!(pair.server.peak_bytes() < before + (64 << 20), "{} of {before}", pair.server.peak_bytes());
}

#[test]
fn invalid_json_is_skipped() {
    let pair = Pair::start("invalid-json", "");
    pair.echo();
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "bad__garbage"}});
    // The call gets no response, so the client disconnects.
    drop(pair.server.send("POST /mcp", &call.to_string()));
    pair.echo();
    pair.assert_good_server_responds();
}

#[test]
fn duplicate_responses_are_ignored() {
    let pair = Pair::start("duplicate-ids", "");
    for _ in 0..3 {
        let response = pair.call("twice", &json!({}));
        assert_eq!(response["result"]["content"][0]["text"], "the first", "{response}");
        pair.echo();
    }
    pair.assert_good_server_responds();
}

#[test]
fn changed_tool_of_pinned_server_is_withheld() {
    let pair = Pair::start("change-tools", "");
    pair.echo();
    pair.command(&["server", "pin", "bad"]);
    pair.echo();
    pair.call("change", &json!({}));
    pair.info_when(|_| !pair.tools().contains(&"echo".to_owned()));
    let refused = pair.call("echo", &json!({"message": "x"}));
    assert_eq!(refused["error"]["data"]["error_code"], "POLICY_DENIED", "{refused}");
    assert!(!pair.tools().contains(&"added".to_owned()), "{:?}", pair.tools());
    assert!(pair.tools().contains(&"pid".to_owned()));
    pair.command(&["server", "pin", "bad"]);
    pair.info_when(|_| pair.tools().contains(&"added".to_owned()));
    pair.echo();
    pair.assert_good_server_responds();
}

#[test]
fn changed_tools_of_unpinned_server_are_offered() {
    let pair = Pair::start("change-tools", "");
    pair.echo();
    pair.call("change", &json!({}));
    pair.info_when(|_| pair.tools().contains(&"added".to_owned()));
}

#[test]
fn server_ignoring_sigterm_is_killed_with_gateway() {
    assert_no_process_is_left("ignore-sigterm");
}

#[test]
fn daemons_are_killed_with_gateway() {
    assert_no_process_is_left("fork-daemons");
}

fn assert_no_process_is_left(mode: &str) {
    let pair = Pair::start(mode, "");
    pair.echo();
    let info = pair.info();
    let sandbox: i32 =
        info["sandbox_id"].as_str().and_then(|id| id.parse().ok()).expect("the PID of the first process");
    let inside = processes_in_namespace_of(sandbox);
    assert!(inside.len() >= 2, "{inside:?}");
    drop(pair);
    for process in inside {
        assert!(!Path::new(&format!("/proc/{process}")).exists(), "process {process} of {mode} is left");
    }
}

/// Returns all processes in the PID namespace of a process.
fn processes_in_namespace_of(process: i32) -> Vec<i32> {
    let namespace = |process: i32| fs::read_link(format!("/proc/{process}/ns/pid")).ok();
    let wanted = namespace(process).expect("the process exists");
    let all = fs::read_dir("/proc").expect("list /proc").flatten();
    let numbers = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.filter(|number| namespace(*number).as_ref() == Some(&wanted)).collect()
}

fn threads_in_namespace_of(process: i32) -> usize {
    let threads = |process: i32| fs::read_dir(format!("/proc/{process}/task")).map_or(0, Iterator::count);
    processes_in_namespace_of(process).into_iter().map(threads).sum()
}

#[test]
fn server_that_exits_on_unknown_method_is_initialized_again() {
    Pair::start("no-discover", "").echo();
}

#[test]
fn endless_pagination_fails_the_start() {
    let pair = Pair::start("endless-pages", "");
    let info = pair.info_when(|info| !info["error"].is_null());
    assert_eq!(info["error"]["phase"], "mcp_init", "{info}");
    pair.assert_good_server_responds();
}

#[test]
fn too_large_result_is_reported() {
    let pair = Pair::start("big-result", "");
    let refused = pair.call("big", &json!({}));
    assert!(refused["error"]["message"].as_str().is_some_and(|message| message.contains("large")), "{refused}");
    pair.echo();
}

#[test]
fn hundreds_of_tools_are_listed() {
    assert_eq!(Pair::start("many-tools", "").tools().len(), 500);
}

#[test]
fn invalid_tools_are_not_offered_and_valid_ones_work() {
    let pair = Pair::start("odd-list", "");
    pair.echo();
    assert_eq!(pair.tools(), ["echo", "env", "fetch", "pid", "read_path", "write_path", "sleep"]);
    for meta in [json!("x"), json!([1]), json!(null)] {
        let call = json!({"name": "bad__echo", "arguments": {"message": "m"}, "_meta": meta});
        let response = pair.server.request("tools/call", &call);
        assert_eq!(response["result"]["content"][0]["text"], "m", "{response}");
    }
    pair.assert_good_server_responds();
}

#[test]
fn hosted_server_cannot_access_host() {
    let directory = tempfile::tempdir().expect("create a directory");
    let secret = directory.path().join("secret");
    fs::write(&secret, "not for servers").expect("write the file");
    let pair = Pair::start("well", "");
    let environment = pair.call("env", &json!({}));
    assert!(!environment.to_string().contains("RINGFENCE_STATE_DIR"), "{environment}");
    let read = pair.call("read_path", &json!({"path": secret}));
    assert_eq!(read["result"]["isError"], true, "{read}");
    let port = crate::network::serve("a page");
    let fetched = pair.call("fetch", &json!({"url": format!("http://127.0.0.1:{port}/")}));
    assert_eq!(fetched["result"]["isError"], true, "{fetched}");
}

#[test]
fn progress_and_cancellation_are_forwarded() {
    let pair = Pair::start("well", "");
    let info = pair.info_when(|info| info["status"] == "connected");
    let sandbox: i32 =
        info["sandbox_id"].as_str().and_then(|id| id.parse().ok()).expect("the PID of the first process");
    // The server handles each call in a separate thread, which ends with the call.
    let idle_threads = threads_in_namespace_of(sandbox);
    pair.echo();
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {
        "name": "bad__sleep", "arguments": {"seconds": 0.1}, "_meta": {"progressToken": "mine"}}});
    let headers = format!(
        "Host: {}\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\n",
        pair.server.address
    );
    let (_, stream) = pair.server.http("POST /mcp", &headers, &call.to_string());
    assert!(stream.contains(r#""progressToken":"mine""#) && stream.contains("slept"), "{stream}");
    let call = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {
        "name": "bad__sleep", "arguments": {"seconds": 100}}});
    wait_until("the previous call does not end", || threads_in_namespace_of(sandbox) == idle_threads);
    let waiting = pair.server.send("POST /mcp", &call.to_string());
    wait_until("the call does not reach the server", || threads_in_namespace_of(sandbox) > idle_threads);
    drop(waiting);
    let logs = || pair.command(&["server", "logs", "bad"]);
    pair.info_when(|_| logs().contains("cancelled"));
}
