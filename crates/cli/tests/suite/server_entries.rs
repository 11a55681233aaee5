//! `ringfence server`: entries are added, shown, switched, removed and imported, mostly without a running server.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::{Command, Output};

use ringfence_store::Store;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::BINARY;
use ringfence_testkit::{Server, User};

/// A directory with a separate home, project and state directory.
struct Fixture(TempDir);

impl Fixture {
    fn new() -> Self {
        let fixture = Self(tempfile::tempdir().expect("directory is created"));
        for name in ["home", "project"] {
            std::fs::create_dir(fixture.path(name)).expect("directory is created");
        }
        fixture
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("directory is created");
        std::fs::write(path, text).expect("file is written");
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(BINARY);
        command.arg("server").args(arguments).current_dir(self.path("project")).env_clear();
        command.env("HOME", self.path("home")).env("RINGFENCE_STATE_DIR", self.path("state"));
        command.output().expect("command runs")
    }

    /// Returns the standard output of a command that succeeds.
    fn stdout(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).expect("valid UTF-8")
    }

    /// Returns the standard error of a command that succeeds without a result on standard output.
    fn stderr(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success() && output.stdout.is_empty(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stderr).expect("valid UTF-8")
    }

    fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.stdout(arguments)).expect("valid JSON")
    }

    /// Returns the standard error of a command that fails.
    fn error(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert_eq!(output.status.code(), Some(125), "{arguments:?}: {output:?}");
        String::from_utf8(output.stderr).expect("valid UTF-8")
    }

    fn entry(&self, name: &str) -> Value {
        self.json(&["show", name, "--json", "--reveal"])["entry"].take()
    }

    /// Returns the names and statuses of all servers.
    fn statuses(&self) -> Vec<(String, String)> {
        let list = self.json(&["list", "--json"]);
        let text = |value: &Value| value.as_str().expect("a string").to_owned();
        let servers = list["servers"].as_array().expect("a list").iter();
        servers.map(|server| (text(&server["name"]), text(&server["status"]))).collect()
    }
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(name, status)| ((*name).to_owned(), (*status).to_owned())).collect()
}

#[test]
fn tools_are_found_without_a_running_server() {
    let fixture = Fixture::new();
    for name in ["git hub", "clock", "off", "new"] {
        fixture.stdout(&["add", name, "--", "no-such-program"]);
    }
    let store = Store::open(&fixture.path("state")).expect("store opens");
    let runtime = tokio::runtime::Runtime::new().expect("runtime starts");
    let store_tools = |name: &str, tools: Value| {
        let uuid = fixture.json(&["show", name, "--json"])["uuid"].as_str().expect("a string").to_owned();
        let is_stored = runtime.block_on(store.set_catalogue(&uuid, tools.as_array().expect("a list")));
        assert!(is_stored.expect("tools are written"));
    };
    let schema = json!({"type": "object", "properties": {"title": {"type": "string"}}});
    let issue =
        json!({"name": "create-issue", "description": "\n Opens an issue\u{1b}[2J.\nMore.", "inputSchema": schema});
    store_tools("git hub", json!([issue, {"name": "fork", "description": "Copies a repository"}]));
    store_tools("clock", json!([{"name": "now"}]));
    store_tools("off", json!([{"name": "open_issue", "description": "Opens an issue"}]));
    fixture.stdout(&["disable", "off"]);

    let output = fixture.run(&["search", "creating", "an", "isseu"]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "git hub.create-issue — Opens an issue\\u{1b}[2J.\n");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("the tools of new are unknown until") && !stderr.contains("off"), "{stderr}");
    assert_eq!(fixture.stdout(&["search", "now"]), "clock.now\n");
    assert!(fixture.stderr(&["search", "xylophone"]).ends_with("\nno tools found\n"));
    assert_eq!(fixture.stdout(&["search", "issue repository", "--limit", "1"]).lines().count(), 1);
    let found = fixture.json(&["search", "new issue", "--json"])["tools"][0].take();
    assert!(found["score"].as_f64().is_some_and(|score| score > 0.0), "{found}");
    let fields = ["server", "server_alias", "tool", "alias", "inputSchema"].map(|key| found[key].clone());
    let expected = [json!("git hub"), json!("git_hub"), json!("create-issue"), json!("create_issue"), schema];
    assert_eq!(fields, expected);
    fixture.error(&["search"]);
    fixture.error(&["search", "x", "--limit", "0"]);
}

#[test]
fn servers_of_files_have_their_source_and_the_description_of_the_file() {
    let fixture = Fixture::new();
    fixture.write("home/MCPs/tools.json", r#"{"description": "From a file", "mcpServers": {"a": {"command": "x"}, "b": {"command": "x", "description": "Own", "sandbox": false, "box": {"allow": ["a.test"]}}}}"#);
    fixture.write(
        "project/codex.toml",
        "[mcp_servers.codex]\ncommand = \"x\"\nenv_vars = [\"TOKEN\"]\nstartup_timeout_sec = 5\n[mcp_servers.codex.box]\nmemory_mb = 64\n",
    );
    fixture.write("project/bridge.toml", "description = \"All\"\n[mcpServers.bridge]\ncommand = \"x\"\n");
    fixture.write("project/ringfence.toml", "[hosting]\nfiles = [\"codex.toml\", \"bridge.toml\"]\n");
    let names = ["a", "b", "bridge", "codex"];
    assert_eq!(fixture.statuses(), names.map(|name| (name.to_owned(), "not running".to_owned())));
    assert_eq!(fixture.entry("a")["description"], "From a file");
    let own = fixture.entry("b");
    assert_eq!((&own["description"], own.get("sandbox"), own.get("box")), (&json!("Own"), None, None), "{own}");
    assert_eq!(fixture.entry("bridge")["description"], "All");
    let codex = fixture.entry("codex");
    assert_eq!((&codex["env"], &codex["box"]["memory_mb"]), (&json!({"TOKEN": "${TOKEN}"}), &json!(64)));
    assert_eq!(codex["box"]["startup_timeout_sec"], 5);
    assert!(fixture.error(&["disable", "a"]).contains("hosting.discover"));
    // Another source takes precedence, without a report.
    fixture.stdout(&["add", "a", "--", "y"]);
    assert_eq!(fixture.entry("a")["command"], "y");
    let problems = fixture.json(&["list", "--json"])["problems"].to_string();
    assert!(problems.contains("`sandbox = false` is not imported") && !problems.contains("not used"), "{problems}");
    assert!(problems.contains("`box` is ignored"), "{problems}");
    fixture.write("project/ringfence.toml", "[hosting]\ndiscover = false\n");
    assert_eq!(fixture.statuses(), pairs(&[("a", "not running")]));
}

#[test]
fn servers_are_added_shown_switched_and_removed() {
    let fixture = Fixture::new();
    assert_eq!(fixture.stderr(&["list"]), "no servers\n");
    let options = ["--env", "TOKEN", "--env", "KEY=s3cret=", "--cwd", "here", "--description", "Tells the time"];
    let box_options = [
        "--box",
        "allow=a.example,b.example:8443",
        "--box",
        "memory_mb=256",
        "--box",
        "host_path=.",
        "--box",
        "env.A=b",
    ];
    let command = ["--", "uvx", "mcp-server-time", "--local-timezone", "Europe/Paris"];
    let added = [&["add", "time"], &options[..], &box_options, &command].concat();
    assert_eq!(fixture.stdout(&added), "added time (stdio)\n");
    let project = fixture.path("project").canonicalize().expect("file exists");
    let expected = json!({
        "mode": "stdio", "description": "Tells the time", "command": "uvx",
        "args": ["mcp-server-time", "--local-timezone", "Europe/Paris"],
        "env": {"KEY": "s3cret=", "TOKEN": "${TOKEN}"}, "cwd": project.join("here"),
        "box": {"host_path": project, "allow": ["a.example", "b.example:8443"], "env": {"A": "b"}, "memory_mb": 256},
    });
    assert_eq!(fixture.entry("time"), expected);
    assert!(
        !fixture.stdout(&["show", "time"]).contains("s3cret")
            && !fixture.stdout(&["show", "time", "--json"]).contains("s3cret")
    );

    let add_remote = [
        "add",
        "remote",
        "--disabled",
        "--url",
        "https://remote.example/mcp",
        "--mode",
        "sse",
        "--header",
        "X-A=b",
        "--header",
        "X-C: d=e",
    ];
    assert_eq!(fixture.stdout(&add_remote), "added remote (sse)\n");
    let expected = json!({"mode": "sse", "enable": false, "url": "https://remote.example/mcp", "headers": {"X-A": "b", "X-C": "d=e"}});
    assert_eq!(fixture.entry("remote"), expected);
    assert_eq!(fixture.statuses(), pairs(&[("remote", "disabled"), ("time", "not running")]));

    assert_eq!(fixture.stdout(&["enable", "remote"]), "enabled remote\n");
    assert_eq!(fixture.stdout(&["disable", "time"]), "disabled time\n");
    assert_eq!(fixture.statuses(), pairs(&[("remote", "not running"), ("time", "disabled")]));

    let uuid = fixture.json(&["show", "time", "--json"])["uuid"].take();
    assert!(fixture.error(&["add", "time", "--", "other"]).contains("hint: choose another name"));
    fixture.stdout(&["add", "time", "--replace", "--", "other"]);
    assert_eq!(fixture.entry("time"), json!({"mode": "stdio", "command": "other"}));
    assert_eq!(fixture.json(&["show", "time", "--json"])["uuid"], uuid, "the server has the same UUID");

    assert_eq!(fixture.stdout(&["remove", "time", "remote"]), "removed time\nremoved remote\n");
    assert_eq!(fixture.stderr(&["list"]), "no servers\n");
}

#[test]
fn invalid_arguments_are_refused_with_a_hint() {
    let fixture = Fixture::new();
    fixture.write("project/ringfence.toml", "[servers.fixed]\ncommand = \"x\"\n");
    let errors = [
        fixture.error(&["add", "a__b", "--", "x"]),
        fixture.error(&["add", "a", "--url", "ftp://h"]),
        fixture.error(&["add", "a", "--box", "allow=https://h", "--", "x"]),
        fixture.error(&["add", "a", "--box", "memory_mb=lots", "--", "x"]),
        fixture.error(&["remove", "missing"]),
        fixture.error(&["disable", "fixed"]),
        fixture.error(&["show", "missing"]),
        fixture.error(&["tools", "fixed"]),
        fixture.error(&["logs", "fixed"]),
        fixture.error(&["pin", "fixed"]),
    ];
    insta::assert_snapshot!(errors.join("\n"));
    assert_eq!(fixture.statuses(), pairs(&[("fixed", "not running")]), "nothing was added");
}

#[test]
fn unknown_box_key_is_refused_and_nothing_is_added() {
    let fixture = Fixture::new();
    let error = fixture.error(&["add", "a", "--box", "alow=h.example", "--", "x"]);
    assert!(error.contains("unknown key `alow`; did you mean `allow`?"), "{error}");
    assert_eq!(fixture.stderr(&["list"]), "no servers\n");
}

#[test]
fn servers_of_all_sources_are_listed_with_name_collisions() {
    let fixture = Fixture::new();
    fixture.write(
        "project/ringfence.toml",
        "[hosting]\nfiles = [\"more.json\"]\n[servers.a]\ncommand = \"configured\"\n[servers.a.box]\ncolour = 1\n",
    );
    fixture.write(
        "project/more.json",
        r#"{"mcpServers": {"a": {"command": "filed"}, "b": {"url": "https://b.example"}}}"#,
    );
    fixture.stdout(&["add", "c", "--", "stored"]);
    let listed = fixture.run(&["list"]);
    let shown = format!("{}{}", String::from_utf8_lossy(&listed.stdout), String::from_utf8_lossy(&listed.stderr));
    insta::assert_snapshot!(shown);
    let other = fixture.run(&["list", "--config", "/nonexistent.toml"]);
    assert_eq!(other.status.code(), Some(125), "`--config` selects another configuration");
}

#[test]
fn servers_of_clients_are_imported_or_skipped_with_a_reason() {
    let fixture = Fixture::new();
    assert_eq!(fixture.stderr(&["import"]), "no configuration of a client with servers found\n");
    fixture.write(
        "home/.cursor/mcp.json",
        r#"{"mcpServers": { // a comment, which Cursor allows
            "github": {"command": "npx", "args": ["-y", "github"], "env": {"TOKEN": "${env:TOKEN}"}, "disabled": true},
            "ringfence": {"command": "ringfence", "args": ["serve", "--stdio"]},
        }}"#,
    );
    fixture.write(
        "home/.codex/config.toml",
        "[mcp_servers.docs]\nurl = \"https://docs.example/mcp\"\n[mcp_servers.github]\ncommand = \"x\"\n",
    );
    fixture.write("project/.vscode/mcp.json", r#"{"servers": {"asks": {"command": "x", "args": ["${input:key}"]}}}"#);
    fixture.write("project/.mcp.json", "{broken");

    let output = fixture.run(&["import", "--dry-run"]);
    assert!(output.status.success(), "{output:?}");
    let shown = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).expect("valid UTF-8")).concat();
    let home = fixture.path("home").display().to_string();
    let project = fixture.path("project").canonicalize().expect("file exists").display().to_string();
    // The width of the columns depends on the paths of this machine.
    let shown = shown.replace(&project, "PROJECT").replace(&home, "HOME");
    let lines = shown
        .lines()
        .map(|line| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect::<Vec<_>>().join("  "));
    insta::assert_snapshot!(lines.collect::<Vec<_>>().join("\n"));
    assert_eq!(fixture.stderr(&["list"]), "no servers\n", "a dry run changes nothing");

    let imported = fixture.json(&["import", "--from", "cursor", "--json"]);
    assert_eq!(imported["imported"][0]["name"], "github");
    assert_eq!(imported["skipped"][0]["name"], "ringfence");
    assert_eq!(fixture.entry("github")["env"], json!({"TOKEN": "${env:TOKEN}"}), "the variable is not expanded");
    assert!(fixture.stdout(&["import"]).ends_with("1 imported, 5 skipped\n"));
    assert_eq!(fixture.statuses(), pairs(&[("docs", "not running"), ("github", "disabled")]));
    assert!(fixture.stdout(&["import"]).ends_with("0 imported, 6 skipped\n"), "existing entries are not replaced");
    fixture.stdout(&["enable", "github"]);
    assert!(fixture.stdout(&["import", "--replace"]).ends_with("2 imported, 4 skipped\n"));
    assert_eq!(fixture.statuses(), pairs(&[("docs", "not running"), ("github", "disabled")]));
    assert!(fixture.error(&["import", "--from", "missing"]).contains("claude-desktop"));
}

/// Commands succeed even if the running server does not support their requests.
#[test]
fn entries_can_be_changed_while_a_server_runs() {
    let server = Server::start_as(User::Root, &[], &[]);
    let run = |arguments: &[&str]| {
        let mut command = User::Root.ringfence();
        command
            .arg("server")
            .args(arguments)
            .env("RINGFENCE_STATE_DIR", server.state.path())
            .output()
            .expect("command runs")
    };
    assert!(run(&["add", "remote", "--disabled", "--url", "https://remote.example/mcp"]).status.success());
    let listed = run(&["list"]);
    assert!(String::from_utf8_lossy(&listed.stdout).contains("remote"), "{listed:?}");
    assert!(run(&["remove", "remote"]).status.success());
}

/// Responds like a server that hosts `time`, and returns the request lines.
fn respond(listener: &UnixListener, requests: usize) -> Vec<String> {
    let mut request_lines = Vec::new();
    for stream in listener.incoming().take(requests) {
        let mut stream = stream.expect("a connection");
        let mut request = Vec::new();
        let mut buffer = [0; 4096];
        while !request.windows(4).any(|window| window == b"\r\n\r\n") {
            let length = stream.read(&mut buffer).expect("request is read");
            request.extend_from_slice(&buffer[..length]);
        }
        let request = String::from_utf8_lossy(&request).into_owned();
        let line = request.lines().next().expect("a line").trim_end_matches(" HTTP/1.1").to_owned();
        let time =
            json!({"name": "time", "status": "connected", "tool_count": 2, "stderr": ["ready", "\u{1b}[31mred"]});
        let (status, body) = match line.as_str() {
            "GET /v1/servers" => (200, json!({"servers": [time]})),
            "GET /v1/servers/time" => (200, time),
            "GET /v1/servers/time/tools" => (
                200,
                json!({"tools": [
                    {"name": "now", "description": "Tells the time. At length.", "held": false},
                    {"name": "zone", "description": "Changed", "held": true},
                ]}),
            ),
            "POST /v1/servers/time/pin" => (200, json!({"pinned": ["now", "zone"]})),
            _ => (404, json!({"error": "server not found: a b", "recovery_suggestions": ["list the servers"]})),
        };
        let body = body.to_string();
        write!(stream, "HTTP/1.1 {status} X\r\nContent-Length: {}\r\n\r\n{body}", body.len())
            .expect("response is written");
        request_lines.push(line);
    }
    request_lines
}

#[test]
fn state_of_a_running_server_is_shown() {
    let fixture = Fixture::new();
    fixture.stdout(&["add", "time", "--", "x"]);
    fixture.stdout(&["add", "other", "--", "x"]);
    std::fs::create_dir(fixture.path("state/servers")).expect("directory is created");
    let listener = UnixListener::bind(fixture.path(&format!("state/servers/{}.sock", std::process::id())))
        .expect("socket listens");
    let server = std::thread::spawn(move || respond(&listener, 6));
    assert_eq!(fixture.statuses(), pairs(&[("other", "not running"), ("time", "connected")]));
    assert!(fixture.stdout(&["show", "time"]).contains("tool_count"));
    assert_eq!(fixture.stdout(&["logs", "time"]), "ready\n\\u{1b}[31mred\n", "control characters are escaped");
    let tools = fixture.stdout(&["tools", "time"]);
    assert!(tools.contains("now   yes") && tools.contains("zone  withheld"), "{tools}");
    assert_eq!(fixture.stdout(&["pin", "time"]), "accepted 2 tools of time\n");
    assert!(fixture.error(&["tools", "a b"]).contains("error: server not found: a b\nhint: list the servers"));
    let request_lines = server.join().expect("requests are handled");
    assert_eq!(request_lines[5], "GET /v1/servers/a%20b/tools");
}
