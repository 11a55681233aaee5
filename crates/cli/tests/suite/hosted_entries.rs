//! Server entries that are added, changed and removed while `serve` runs, and profiles that select from them.

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
    fn start(configuration: &str) -> Self {
        let directory = tempfile::tempdir().expect("create a directory");
        let path = directory.path().join("ringfence.toml");
        fs::write(&path, configuration).expect("write the file");
        let server = Server::start(&["--config", path.to_str().expect("valid UTF-8")], &[]);
        Self { server, directory }
    }

    fn configure(&self, configuration: &str) {
        fs::write(self.directory.path().join("ringfence.toml"), configuration).expect("write the file");
    }

    fn command(&self, arguments: &[&str]) {
        let output = Command::new(BINARY)
            .arg("server")
            .args(arguments)
            .env("RINGFENCE_STATE_DIR", self.server.state.path())
            .output()
            .expect("run the command");
        assert!(output.status.success(), "{output:?}");
    }

    /// Returns the output of `server search`, which reads the store and does not query the running server.
    fn search(&self, query: &str) -> String {
        let path = self.directory.path();
        let output = Command::new(BINARY)
            .args(["server", "--config", path.join("ringfence.toml").to_str().expect("valid UTF-8"), "search", query])
            .env("RINGFENCE_STATE_DIR", self.server.state.path())
            .env("HOME", path)
            .current_dir(path)
            .output()
            .expect("run the command");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("valid UTF-8")
    }

    /// Returns the names of the tools at a path, without the builtin ones.
    fn tools(&self, path: &str) -> Vec<String> {
        let list = self.request(path, "tools/list", &json!({}));
        let tools = list["result"]["tools"].as_array().unwrap_or_else(|| panic!("{list}"));
        let names = tools.iter().filter_map(|tool| tool["name"].as_str());
        names.filter(|name| name.contains("__") || path != "/mcp").map(str::to_owned).collect()
    }

    fn request(&self, path: &str, method: &str, params: &Value) -> Value {
        let request = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string();
        let headers = format!("Host: {}\r\nContent-Type: application/json\r\n", self.server.address);
        let (_, body) = self.server.http(&format!("POST {path}"), &headers, &request);
        serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}"))
    }

    fn await_tools(&self, condition: impl Fn(&[String]) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let tools = self.tools("/mcp");
            if condition(&tools) {
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
fn changed_entries_of_every_source_take_effect() {
    let hosting = Hosting::start(&entry("written"));
    hosting.await_tools(has("written"));
    let program = fixture_path("bad_server.py").display().to_string();
    hosting.command(&["add", "added", "--", "python3", &program, "well"]);
    hosting.await_tools(has("added"));
    hosting.configure(&entry("replaced"));
    hosting.await_tools(|tools| has("replaced")(tools) && !has("written")(tools));
    // If the file is invalid, its previous entries stay in use.
    hosting.configure("[servers.replaced\n");
    hosting.command(&["disable", "added"]);
    hosting.await_tools(|tools| has("replaced")(tools) && !has("added")(tools));
    hosting.command(&["enable", "added"]);
    hosting.await_tools(has("added"));
    hosting.command(&["remove", "added"]);
    hosting.await_tools(|tools| !has("added")(tools));
}

#[test]
fn tools_are_found_until_their_entry_is_removed() {
    let hosting = Hosting::start(&entry("a"));
    let await_found = |condition: &dyn Fn(&str) -> bool| {
        let deadline = Instant::now() + Duration::from_secs(30);
        while !condition(&hosting.search("read path")) {
            assert!(Instant::now() < deadline, "{}", hosting.search("read path"));
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    await_found(&|found| found.starts_with("a.read_path"));
    let broken = entry("a").replace("python3", "no-such-program");
    hosting.configure(&broken);
    hosting.await_tools(|tools| !has("a")(tools));
    assert!(
        hosting.search("read path").starts_with("a.read_path"),
        "the tools of a server that does not run are not found"
    );
    hosting.configure("");
    let store = Store::open(hosting.server.state.path()).expect("open the store");
    let runtime = tokio::runtime::Runtime::new().expect("start a runtime");
    let uuid = derived_uuid("a");
    let deadline = Instant::now() + Duration::from_secs(30);
    while !runtime.block_on(store.catalogues(vec![uuid.clone()])).expect("read the catalogues").is_empty() {
        assert!(Instant::now() < deadline, "the catalogue of the removed server is not deleted");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn only_operator_can_change_entries() {
    let hosting = Hosting::start(&entry("a"));
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
        let (status, response) = hosting.server.http(request, &headers, body);
        assert!(status == 403 && response.contains("POLICY_DENIED"), "{request}: {status} {response}");
    }
    hosting.await_tools(has("a"));
    let (_, shown) = hosting.server.http("GET /v1/servers/a", &headers, "");
    let shown: Value = serde_json::from_str(&shown).expect("valid JSON");
    assert!(shown["status"] == "connected" && shown.get("stderr").is_none(), "{shown}");
}

#[test]
fn profile_offers_selected_tools() {
    let profiles = "
        [profiles.selected]
        servers = [\"a\"]
        allow = [\"a__*\"]
        deny = [\"env\", \"a__fetch\"]
        own_tools = false
        [profiles.unprefixed]
        servers = [\"a\"]
        prefix = false
        own_tools = false
    ";
    let hosting = Hosting::start(&format!("{}{}{profiles}", entry("a"), entry("b")));
    hosting.await_tools(|tools| has("a")(tools) && has("b")(tools));
    let selected = hosting.tools("/mcp/selected");
    assert_eq!(selected, ["a__echo", "a__pid", "a__read_path", "a__write_path", "a__sleep"]);
    assert!(hosting.tools("/mcp/unprefixed").contains(&"echo".to_owned()));
    let call = |path: &str, name: &str| hosting.request(path, "tools/call", &json!({"name": name, "arguments": {}}));
    assert_eq!(call("/mcp/unprefixed", "echo")["result"]["content"][0]["text"], "");
    for (path, name) in [("/mcp/selected", "a__env"), ("/mcp/selected", "b__echo"), ("/mcp/selected", "get_sessions")] {
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
