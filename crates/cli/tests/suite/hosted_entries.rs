//! Servers that come, go and are selected while `serve` runs.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use ringfence_entries::derived_uuid;
use ringfence_store::Store;
use ringfence_testkit::{Server, fixture_path};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::BINARY;

struct Hosting {
    server: Server,
    directory: TempDir,
}

impl Hosting {
    fn with(configuration: &str) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("ringfence.toml");
        fs::write(&path, configuration).expect("it is written");
        let server = Server::start(&["--config", path.to_str().expect("it is text")], &[]);
        Self { server, directory }
    }

    fn configure(&self, configuration: &str) {
        fs::write(self.directory.path().join("ringfence.toml"), configuration).expect("it is written");
    }

    fn command(&self, arguments: &[&str]) {
        let output = Command::new(BINARY)
            .arg("server")
            .args(arguments)
            .env("RINGFENCE_STATE_DIR", self.server.state.path())
            .output()
            .expect("it runs");
        assert!(output.status.success(), "{output:?}");
    }

    /// What a search of the store finds, without asking the server that runs.
    fn finds(&self, query: &str) -> String {
        let path = self.directory.path();
        let output = Command::new(BINARY)
            .args(["server", "--config", path.join("ringfence.toml").to_str().expect("it is text"), "search", query])
            .env("RINGFENCE_STATE_DIR", self.server.state.path())
            .env("HOME", path)
            .current_dir(path)
            .output()
            .expect("it runs");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("it is text")
    }

    /// The names of tools at a path, but for our own.
    fn tools(&self, path: &str) -> Vec<String> {
        let list = self.ask(path, "tools/list", &json!({}));
        let tools = list["result"]["tools"].as_array().unwrap_or_else(|| panic!("{list}"));
        let names = tools.iter().filter_map(|tool| tool["name"].as_str());
        names.filter(|name| name.contains("__") || path != "/mcp").map(str::to_owned).collect()
    }

    fn ask(&self, path: &str, method: &str, params: &Value) -> Value {
        let request = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string();
        let headers = format!("Host: {}\r\nContent-Type: application/json\r\n", self.server.address);
        let (_, body) = self.server.http(&format!("POST {path}"), &headers, &request);
        serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}"))
    }

    fn await_tools(&self, is_so: impl Fn(&[String]) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let tools = self.tools("/mcp");
            if is_so(&tools) {
                return;
            }
            assert!(Instant::now() < deadline, "{tools:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

fn entry(name: &str) -> String {
    let program = fixture_path("bad_server.py").display().to_string();
    format!("[servers.{name}]\ncommand = \"python3\"\nargs = [{program:?}, \"well\"]\n")
}

fn has(name: &str) -> impl Fn(&[String]) -> bool + '_ {
    move |tools| tools.iter().any(|tool| tool.starts_with(&format!("{name}__")))
}

#[test]
fn entries_take_effect_at_once_wherever_they_are_changed() {
    let hosting = Hosting::with(&entry("written"));
    hosting.await_tools(has("written"));
    let program = fixture_path("bad_server.py").display().to_string();
    hosting.command(&["add", "added", "--", "python3", &program, "well"]);
    hosting.await_tools(has("added"));
    hosting.configure(&entry("other"));
    hosting.await_tools(|tools| has("other")(tools) && !has("written")(tools));
    // What cannot be read any more keeps what it last had.
    hosting.configure("[servers.other\n");
    hosting.command(&["disable", "added"]);
    hosting.await_tools(|tools| has("other")(tools) && !has("added")(tools));
    hosting.command(&["enable", "added"]);
    hosting.await_tools(has("added"));
    hosting.command(&["remove", "added"]);
    hosting.await_tools(|tools| !has("added")(tools));
}

#[test]
fn what_a_server_offered_is_found_until_its_entry_goes() {
    let hosting = Hosting::with(&entry("a"));
    let await_found = |is_so: &dyn Fn(&str) -> bool| {
        let deadline = Instant::now() + Duration::from_secs(30);
        while !is_so(&hosting.finds("read path")) {
            assert!(Instant::now() < deadline, "{}", hosting.finds("read path"));
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    await_found(&|found| found.starts_with("a.read_path"));
    let broken = entry("a").replace("python3", "no-such-program");
    hosting.configure(&broken);
    hosting.await_tools(|tools| !has("a")(tools));
    assert!(hosting.finds("read path").starts_with("a.read_path"), "it does not run, and is still known");
    hosting.configure("");
    let store = Store::open(hosting.server.state.path()).expect("it opens");
    let runtime = tokio::runtime::Runtime::new().expect("it starts");
    let uuid = derived_uuid("a");
    let deadline = Instant::now() + Duration::from_secs(30);
    while !runtime.block_on(store.catalogues(vec![uuid.clone()])).expect("it is read").is_empty() {
        assert!(Instant::now() < deadline, "what is no more is forgotten");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn only_the_operator_changes_entries() {
    let hosting = Hosting::with(&entry("a"));
    let headers = format!("Host: {}\r\nContent-Type: application/json\r\n", hosting.server.address);
    let new = json!({"name": "b", "command": "sh", "sandbox": false}).to_string();
    for (request, body) in [
        ("POST /v1/servers", new.as_str()),
        ("PATCH /v1/servers/a", r#"{"enable": false}"#),
        ("DELETE /v1/servers/a", ""),
        ("POST /v1/servers/a/pin", ""),
        ("DELETE /v1/servers/a/pin", ""),
        ("POST /v1/servers/a/restart", ""),
    ] {
        let (status, answer) = hosting.server.http(request, &headers, body);
        assert!(status == 403 && answer.contains("POLICY_DENIED"), "{request}: {status} {answer}");
    }
    hosting.await_tools(has("a"));
    let (_, shown) = hosting.server.http("GET /v1/servers/a", &headers, "");
    let shown: Value = serde_json::from_str(&shown).expect("it is JSON");
    assert!(shown["status"] == "connected" && shown.get("stderr").is_none(), "{shown}");
}

#[test]
fn a_profile_offers_a_selection() {
    let profiles = "
        [profiles.some]
        servers = [\"a\"]
        allow = [\"a__*\"]
        deny = [\"env\", \"a__fetch\"]
        own_tools = false
        [profiles.itself]
        servers = [\"a\"]
        prefix = false
        own_tools = false
    ";
    let hosting = Hosting::with(&format!("{}{}{profiles}", entry("a"), entry("b")));
    hosting.await_tools(|tools| has("a")(tools) && has("b")(tools));
    let some = hosting.tools("/mcp/some");
    assert_eq!(some, ["a__echo", "a__pid", "a__read_path", "a__write_path", "a__sleep"]);
    assert!(hosting.tools("/mcp/itself").contains(&"echo".to_owned()));
    let call = |path: &str, name: &str| hosting.ask(path, "tools/call", &json!({"name": name, "arguments": {}}));
    assert_eq!(call("/mcp/itself", "echo")["result"]["content"][0]["text"], "");
    for (path, name) in [("/mcp/some", "a__env"), ("/mcp/some", "b__echo"), ("/mcp/some", "get_sessions")] {
        let refused = call(path, name);
        assert_eq!(refused["error"]["data"]["error_code"], "VALIDATION_ERROR", "{path} {name}: {refused}");
    }
    let (status, _) = hosting.server.http(
        "POST /mcp/none",
        &format!("Host: {}\r\nContent-Type: application/json\r\n", hosting.server.address),
        "{}",
    );
    assert_eq!(status, 404);
}
