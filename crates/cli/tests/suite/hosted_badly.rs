//! Servers that misbehave, each hosted beside one that does not: what becomes of the bad one, and that the other
//! answers throughout.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use ringfence_testkit::{Server, fixture_path};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::BINARY;

/// A gateway that hosts a bad server and a good one.
struct Pair {
    server: Server,
    _directory: TempDir,
}

impl Pair {
    fn with(mode: &str, walls: &str) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let config = directory.path().join("ringfence.toml");
        let program = fixture_path("bad_server.py").display().to_string();
        let entry = |name: &str, mode: &str, walls: &str| {
            format!("[servers.{name}]\ncommand = \"python3\"\nargs = [{program:?}, {mode:?}]\nbox = {{ {walls} }}\n")
        };
        fs::write(&config, entry("bad", mode, walls) + &entry("good", "well", "")).expect("it is written");
        let pair = Self {
            server: Server::start(&["--config", config.to_str().expect("it is text")], &[]),
            _directory: directory,
        };
        pair.the_other_answers();
        pair
    }

    fn the_other_answers(&self) {
        let answer = self.server.call("good__echo", &json!({"message": "here"}));
        assert_eq!(answer["result"]["content"][0]["text"], "here", "{answer}");
    }

    fn call(&self, tool: &str, arguments: &Value) -> Value {
        self.server.call(&format!("bad__{tool}"), arguments)
    }

    fn echo(&self) {
        let answer = self.call("echo", &json!({"message": "still here"}));
        assert_eq!(answer["result"]["content"][0]["text"], "still here", "{answer}");
    }

    fn info(&self) -> Value {
        let headers = format!("Host: {}\r\n", self.server.address);
        let (status, body) = self.server.http("GET /v1/servers/bad", &headers, "");
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).expect("it is JSON")
    }

    /// What is told of it, once that is so.
    fn info_when(&self, is_so: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let info = self.info();
            if is_so(&info) {
                return info;
            }
            assert!(Instant::now() < deadline, "{info}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn tools(&self) -> Vec<String> {
        let list = self.server.request("tools/list", &json!({}));
        let tools = list["result"]["tools"].as_array().expect("a list");
        tools.iter().filter_map(|tool| tool["name"].as_str()?.strip_prefix("bad__")).map(str::to_owned).collect()
    }

    fn command(&self, arguments: &[&str]) -> String {
        let output = std::process::Command::new(BINARY)
            .args(arguments)
            .env("RINGFENCE_STATE_DIR", self.server.state.path())
            .output()
            .expect("it runs");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("it is text")
    }
}

#[test]
fn one_that_hangs_at_start_times_out_in_its_phase() {
    let pair = Pair::with("hang-at-start", "startup_timeout_sec = 1");
    let info = pair.info_when(|info| !info["error"].is_null());
    assert_eq!(info["error"]["phase"], "mcp_init", "{info}");
    assert_eq!(info["status"], "connecting", "{info}");
    pair.the_other_answers();
}

#[test]
fn one_that_dies_at_start_says_what_it_said() {
    let pair = Pair::with("die-at-start", "");
    let info = pair.info_when(|info| !info["error"].is_null());
    assert_eq!(info["error"]["phase"], "process_start", "{info}");
    let told = info["error"].to_string();
    assert!(told.contains("code 3") && told.contains("the table of contents is missing"), "{told}");
    pair.the_other_answers();
    let refused = pair.call("echo", &json!({}));
    assert_eq!(refused["error"]["data"]["context"]["phase"], "process_start", "{refused}");
}

#[test]
fn a_call_in_which_it_dies_may_have_run_and_the_next_one_works() {
    let pair = Pair::with("die-in-call", "");
    pair.echo();
    let lost = pair.call("die", &json!({}));
    let data = &lost["error"]["data"];
    assert_eq!((&data["context"]["phase"], &data["context"]["may_have_run"]), (&json!("tool_call"), &json!("true")));
    assert!(lost["error"]["message"].as_str().is_some_and(|message| message.contains("may have run")), "{lost}");
    pair.the_other_answers();
    pair.echo();
    let info = pair.info();
    assert_eq!((&info["status"], &info["restart_count"]), (&json!("connected"), &json!(1)), "{info}");
}

#[test]
fn a_flood_of_errors_costs_nobody_anything() {
    let pair = Pair::with("flood-stderr", "");
    pair.echo();
    pair.the_other_answers();
    let lines = pair.command(&["server", "logs", "bad"]);
    assert!(lines.lines().count() <= 500, "{}", lines.lines().count());
    assert!(pair.server.peak_bytes() < 200 << 20, "{}", pair.server.peak_bytes());
}

#[test]
fn a_line_of_100_mb_is_refused_and_the_server_stays() {
    let pair = Pair::with("send-100-mb", "");
    pair.echo();
    let before = pair.server.peak_bytes();
    let refused = pair.call("flood", &json!({}));
    assert_eq!(refused["error"]["data"]["context"]["phase"], "tool_call", "{refused}");
    pair.the_other_answers();
    pair.echo();
    assert!(pair.server.peak_bytes() < before + (64 << 20), "{} of {before}", pair.server.peak_bytes());
}

#[test]
fn what_is_no_json_is_skipped() {
    let pair = Pair::with("invalid-json", "");
    pair.echo();
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "bad__garbage"}});
    // It is never answered; whoever asked goes away.
    drop(pair.server.send("POST /mcp", &call.to_string()));
    pair.echo();
    pair.the_other_answers();
}

#[test]
fn only_the_first_answer_counts() {
    let pair = Pair::with("duplicate-ids", "");
    for _ in 0..3 {
        let answer = pair.call("twice", &json!({}));
        assert_eq!(answer["result"]["content"][0]["text"], "the first", "{answer}");
        pair.echo();
    }
    pair.the_other_answers();
}

#[test]
fn a_tool_that_changes_after_it_was_accepted_is_held_back() {
    let pair = Pair::with("change-tools", "");
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
    pair.the_other_answers();
}

#[test]
fn without_a_pin_a_changed_list_is_told() {
    let pair = Pair::with("change-tools", "");
    pair.echo();
    pair.call("change", &json!({}));
    pair.info_when(|_| pair.tools().contains(&"added".to_owned()));
}

#[test]
fn one_that_heeds_no_signal_is_gone_with_the_server() {
    nothing_is_left_of("ignore-sigterm");
}

#[test]
fn daemons_are_gone_with_the_server() {
    nothing_is_left_of("fork-daemons");
}

fn nothing_is_left_of(mode: &str) {
    let pair = Pair::with(mode, "");
    pair.echo();
    let info = pair.info();
    let sandbox: i32 = info["sandbox_id"].as_str().and_then(|id| id.parse().ok()).expect("its first process");
    let inside = processes_in_namespace_of(sandbox);
    assert!(inside.len() >= 2, "{inside:?}");
    drop(pair);
    for process in inside {
        assert!(!Path::new(&format!("/proc/{process}")).exists(), "{process} is left of {mode}");
    }
}

/// All processes that share the process namespace of one.
fn processes_in_namespace_of(process: i32) -> Vec<i32> {
    // The first process is of the namespace in which its children are born.
    let namespace = |process: i32| fs::read_link(format!("/proc/{process}/ns/pid")).ok();
    let wanted = namespace(process).expect("it lives");
    let all = fs::read_dir("/proc").expect("it is mounted").flatten();
    let numbers = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.filter(|number| namespace(*number).as_ref() == Some(&wanted)).collect()
}

#[test]
fn one_that_dies_of_an_unknown_question_is_asked_otherwise() {
    Pair::with("no-discover", "").echo();
}

#[test]
fn a_list_without_end_is_given_up() {
    let pair = Pair::with("endless-pages", "");
    let info = pair.info_when(|info| !info["error"].is_null());
    assert_eq!(info["error"]["phase"], "mcp_init", "{info}");
    pair.the_other_answers();
}

#[test]
fn a_large_result_that_fits_no_message_says_so() {
    let pair = Pair::with("big-result", "");
    let refused = pair.call("big", &json!({}));
    assert!(refused["error"]["message"].as_str().is_some_and(|message| message.contains("large")), "{refused}");
    pair.echo();
}

#[test]
fn hundreds_of_tools_are_listed() {
    assert_eq!(Pair::with("many-tools", "").tools().len(), 500);
}

#[test]
fn what_is_no_tool_is_not_offered_and_harms_nobody() {
    let pair = Pair::with("odd-list", "");
    pair.echo();
    assert_eq!(pair.tools(), ["echo", "env", "fetch", "pid", "read_path", "write_path", "sleep"]);
    for odd in [json!("x"), json!([1]), json!(null)] {
        let call = json!({"name": "bad__echo", "arguments": {"message": "m"}, "_meta": odd});
        let answer = pair.server.request("tools/call", &call);
        assert_eq!(answer["result"]["content"][0]["text"], "m", "{answer}");
    }
    pair.the_other_answers();
}

#[test]
fn a_server_sees_nothing_of_the_host() {
    let directory = tempfile::tempdir().expect("a directory");
    let secret = directory.path().join("secret");
    fs::write(&secret, "not for servers").expect("it is written");
    let pair = Pair::with("well", "");
    let environment = pair.call("env", &json!({}));
    assert!(!environment.to_string().contains("RINGFENCE_STATE_DIR"), "{environment}");
    let read = pair.call("read_path", &json!({"path": secret}));
    assert_eq!(read["result"]["isError"], true, "{read}");
    let port = crate::network::serve("a page");
    let fetched = pair.call("fetch", &json!({"url": format!("http://127.0.0.1:{port}/")}));
    assert_eq!(fetched["result"]["isError"], true, "{fetched}");
}

#[test]
fn progress_and_cancellation_pass_through() {
    let pair = Pair::with("well", "");
    pair.echo();
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {
        "name": "bad__sleep", "arguments": {"seconds": 1}, "_meta": {"progressToken": "mine"}}});
    let headers = format!(
        "Host: {}\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\n",
        pair.server.address
    );
    let (_, stream) = pair.server.http("POST /mcp", &headers, &call.to_string());
    assert!(stream.contains(r#""progressToken":"mine""#) && stream.contains("slept"), "{stream}");
    let call = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {
        "name": "bad__sleep", "arguments": {"seconds": 100}}});
    let waiting = pair.server.send("POST /mcp", &call.to_string());
    std::thread::sleep(Duration::from_millis(500));
    drop(waiting);
    let logs = || pair.command(&["server", "logs", "bad"]);
    pair.info_when(|_| logs().contains("cancelled"));
}
