//! `ringfence server`: entries are added, seen, switched, removed and imported, with no server running.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::{Command, Output};

use ringfence_store::Store;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::BINARY;
use ringfence_testkit::{Server, User};

/// A home and a state directory of its own.
struct Desk(TempDir);

impl Desk {
    fn new() -> Self {
        let desk = Self(tempfile::tempdir().expect("a directory"));
        for name in ["home", "project"] {
            std::fs::create_dir(desk.at(name)).expect("it is made");
        }
        desk
    }

    fn at(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.at(path);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("it is made");
        std::fs::write(path, text).expect("it is written");
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(BINARY);
        command.arg("server").args(arguments).current_dir(self.at("project")).env_clear();
        command.env("HOME", self.at("home")).env("RINGFENCE_STATE_DIR", self.at("state"));
        command.output().expect("it runs")
    }

    /// What it prints when all is well.
    fn says(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).expect("it is text")
    }

    /// Returns the standard error of a command that succeeds without a result on standard output.
    fn reports(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success() && output.stdout.is_empty(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stderr).expect("it is text")
    }

    fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.says(arguments)).expect("it is JSON")
    }

    /// What it complains of, with its code for that.
    fn complains(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert_eq!(output.status.code(), Some(125), "{arguments:?}: {output:?}");
        String::from_utf8(output.stderr).expect("it is text")
    }

    fn entry(&self, name: &str) -> Value {
        self.json(&["show", name, "--json", "--reveal"])["entry"].take()
    }

    /// Names and statuses.
    fn listed(&self) -> Vec<(String, String)> {
        let list = self.json(&["list", "--json"]);
        let text = |value: &Value| value.as_str().expect("a text").to_owned();
        let servers = list["servers"].as_array().expect("a list").iter();
        servers.map(|server| (text(&server["name"]), text(&server["status"]))).collect()
    }
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(name, status)| ((*name).to_owned(), (*status).to_owned())).collect()
}

#[test]
fn tools_are_found_while_no_server_runs() {
    let desk = Desk::new();
    for name in ["git hub", "clock", "off", "new"] {
        desk.says(&["add", name, "--", "no-such-program"]);
    }
    let store = Store::open(&desk.at("state")).expect("it opens");
    let runtime = tokio::runtime::Runtime::new().expect("it starts");
    let keep = |name: &str, tools: Value| {
        let uuid = desk.json(&["show", name, "--json"])["uuid"].as_str().expect("a text").to_owned();
        let kept = runtime.block_on(store.set_catalogue(&uuid, tools.as_array().expect("a list")));
        assert!(kept.expect("it is written"));
    };
    let schema = json!({"type": "object", "properties": {"title": {"type": "string"}}});
    let issue =
        json!({"name": "create-issue", "description": "\n Opens an issue\u{1b}[2J.\nMore.", "inputSchema": schema});
    keep("git hub", json!([issue, {"name": "fork", "description": "Copies a repository"}]));
    keep("clock", json!([{"name": "now"}]));
    keep("off", json!([{"name": "open_issue", "description": "Opens an issue"}]));
    desk.says(&["disable", "off"]);

    let output = desk.run(&["search", "creating", "an", "isseu"]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "git hub.create-issue — Opens an issue\\u{1b}[2J.\n");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("the tools of new are unknown until") && !told.contains("off"), "{told}");
    assert_eq!(desk.says(&["search", "now"]), "clock.now\n");
    assert!(desk.reports(&["search", "xylophone"]).ends_with("\nno tools found\n"));
    assert_eq!(desk.says(&["search", "issue repository", "--limit", "1"]).lines().count(), 1);
    let found = desk.json(&["search", "new issue", "--json"])["tools"][0].take();
    assert!(found["score"].as_f64().is_some_and(|score| score > 0.0), "{found}");
    let fields = ["server", "server_alias", "tool", "alias", "inputSchema"].map(|key| found[key].clone());
    let expected = [json!("git hub"), json!("git_hub"), json!("create-issue"), json!("create_issue"), schema];
    assert_eq!(fields, expected);
    desk.complains(&["search"]);
    desk.complains(&["search", "x", "--limit", "0"]);
}

#[test]
fn servers_are_added_seen_switched_and_removed() {
    let desk = Desk::new();
    assert_eq!(desk.reports(&["list"]), "no servers\n");
    let options = ["--env", "TOKEN", "--env", "KEY=s3cret=", "--cwd", "here", "--description", "Tells the time"];
    let walls = [
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
    let added = [&["add", "time"], &options[..], &walls, &command].concat();
    assert_eq!(desk.says(&added), "added time (stdio)\n");
    let project = desk.at("project").canonicalize().expect("it is there");
    let expected = json!({
        "mode": "stdio", "description": "Tells the time", "command": "uvx",
        "args": ["mcp-server-time", "--local-timezone", "Europe/Paris"],
        "env": {"KEY": "s3cret=", "TOKEN": "${TOKEN}"}, "cwd": project.join("here"),
        "box": {"host_path": project, "allow": ["a.example", "b.example:8443"], "env": {"A": "b"}, "memory_mb": 256},
    });
    assert_eq!(desk.entry("time"), expected);
    assert!(
        !desk.says(&["show", "time"]).contains("s3cret") && !desk.says(&["show", "time", "--json"]).contains("s3cret")
    );

    let far = [
        "add",
        "far",
        "--disabled",
        "--url",
        "https://far.example/mcp",
        "--mode",
        "sse",
        "--header",
        "X-A=b",
        "--header",
        "X-C: d=e",
    ];
    assert_eq!(desk.says(&far), "added far (sse)\n");
    let expected = json!({"mode": "sse", "enable": false, "url": "https://far.example/mcp", "headers": {"X-A": "b", "X-C": "d=e"}});
    assert_eq!(desk.entry("far"), expected);
    assert_eq!(desk.listed(), pairs(&[("far", "disabled"), ("time", "not running")]));

    assert_eq!(desk.says(&["enable", "far"]), "enabled far\n");
    assert_eq!(desk.says(&["disable", "time"]), "disabled time\n");
    assert_eq!(desk.listed(), pairs(&[("far", "not running"), ("time", "disabled")]));

    let uuid = desk.json(&["show", "time", "--json"])["uuid"].take();
    assert!(desk.complains(&["add", "time", "--", "other"]).contains("hint: choose another name"));
    desk.says(&["add", "time", "--replace", "--", "other"]);
    assert_eq!(desk.entry("time"), json!({"mode": "stdio", "command": "other"}));
    assert_eq!(desk.json(&["show", "time", "--json"])["uuid"], uuid, "it is still the same server");

    assert_eq!(desk.says(&["remove", "time", "far"]), "removed time\nremoved far\n");
    assert_eq!(desk.reports(&["list"]), "no servers\n");
}

#[test]
fn what_does_not_hold_is_refused_with_a_hint() {
    let desk = Desk::new();
    desk.write("project/ringfence.toml", "[servers.fixed]\ncommand = \"x\"\n");
    let complaints = [
        desk.complains(&["add", "a__b", "--", "x"]),
        desk.complains(&["add", "a", "--url", "ftp://h"]),
        desk.complains(&["add", "a", "--box", "allow=https://h", "--", "x"]),
        desk.complains(&["add", "a", "--box", "memory_mb=lots", "--", "x"]),
        desk.complains(&["remove", "nobody"]),
        desk.complains(&["disable", "fixed"]),
        desk.complains(&["show", "nobody"]),
        desk.complains(&["tools", "fixed"]),
        desk.complains(&["logs", "fixed"]),
        desk.complains(&["pin", "fixed"]),
    ];
    insta::assert_snapshot!(complaints.join("\n"));
    assert_eq!(desk.listed(), pairs(&[("fixed", "not running")]), "nothing was added");
}

#[test]
fn unknown_box_key_is_refused_and_nothing_is_added() {
    let desk = Desk::new();
    let complaint = desk.complains(&["add", "a", "--box", "alow=h.example", "--", "x"]);
    assert!(complaint.contains("unknown key `alow`; did you mean `allow`?"), "{complaint}");
    assert_eq!(desk.reports(&["list"]), "no servers\n");
}

#[test]
fn servers_of_all_places_are_listed_and_clashes_told() {
    let desk = Desk::new();
    desk.write(
        "project/ringfence.toml",
        "[hosting]\nfiles = [\"more.json\"]\n[servers.a]\ncommand = \"configured\"\n[servers.a.box]\ncolour = 1\n",
    );
    desk.write(
        "project/more.json",
        r#"{"mcpServers": {"a": {"command": "filed"}, "b": {"url": "https://b.example"}}}"#,
    );
    desk.says(&["add", "c", "--", "stored"]);
    let listed = desk.run(&["list"]);
    let shown = format!("{}{}", String::from_utf8_lossy(&listed.stdout), String::from_utf8_lossy(&listed.stderr));
    insta::assert_snapshot!(shown);
    let other = desk.run(&["list", "--config", "/nonexistent.toml"]);
    assert_eq!(other.status.code(), Some(125), "another configuration can be named");
}

#[test]
fn clients_are_imported_with_a_reason_for_all_that_is_not() {
    let desk = Desk::new();
    assert_eq!(desk.reports(&["import"]), "no configuration of a client with servers found\n");
    desk.write(
        "home/.cursor/mcp.json",
        r#"{"mcpServers": { // as Cursor has it
            "github": {"command": "npx", "args": ["-y", "github"], "env": {"TOKEN": "${env:TOKEN}"}, "disabled": true},
            "ringfence": {"command": "ringfence", "args": ["serve", "--stdio"]},
        }}"#,
    );
    desk.write(
        "home/.codex/config.toml",
        "[mcp_servers.docs]\nurl = \"https://docs.example/mcp\"\n[mcp_servers.github]\ncommand = \"x\"\n",
    );
    desk.write("project/.vscode/mcp.json", r#"{"servers": {"asks": {"command": "x", "args": ["${input:key}"]}}}"#);
    desk.write("project/.mcp.json", "{broken");

    let output = desk.run(&["import", "--dry-run"]);
    assert!(output.status.success(), "{output:?}");
    let shown = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).expect("it is text")).concat();
    let home = desk.at("home").display().to_string();
    let project = desk.at("project").canonicalize().expect("it is there").display().to_string();
    // Columns are as wide as the paths of this machine.
    let shown = shown.replace(&project, "PROJECT").replace(&home, "HOME");
    let lines = shown
        .lines()
        .map(|line| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect::<Vec<_>>().join("  "));
    insta::assert_snapshot!(lines.collect::<Vec<_>>().join("\n"));
    assert_eq!(desk.reports(&["list"]), "no servers\n", "a dry run changes nothing");

    let imported = desk.json(&["import", "--from", "cursor", "--json"]);
    assert_eq!(imported["imported"][0]["name"], "github");
    assert_eq!(imported["skipped"][0]["name"], "ringfence");
    assert_eq!(desk.entry("github")["env"], json!({"TOKEN": "${env:TOKEN}"}), "it is not expanded");
    assert!(desk.says(&["import"]).ends_with("1 imported, 5 skipped\n"));
    assert_eq!(desk.listed(), pairs(&[("docs", "not running"), ("github", "disabled")]));
    assert!(desk.says(&["import"]).ends_with("0 imported, 6 skipped\n"), "what is there stays");
    desk.says(&["enable", "github"]);
    assert!(desk.says(&["import", "--replace"]).ends_with("2 imported, 4 skipped\n"));
    assert_eq!(desk.listed(), pairs(&[("docs", "not running"), ("github", "disabled")]));
    assert!(desk.complains(&["import", "--from", "nobody"]).contains("claude-desktop"));
}

/// A server that does not know of the requests is no reason to fail.
#[test]
fn lists_are_given_also_beside_a_server_that_runs() {
    let server = Server::start_as(User::Root, &[], &[]);
    let run = |arguments: &[&str]| {
        let mut command = User::Root.ringfence();
        command.arg("server").args(arguments).env("RINGFENCE_STATE_DIR", server.state.path()).output().expect("it runs")
    };
    assert!(run(&["add", "far", "--disabled", "--url", "https://far.example/mcp"]).status.success());
    let listed = run(&["list"]);
    assert!(String::from_utf8_lossy(&listed.stdout).contains("far"), "{listed:?}");
    assert!(run(&["remove", "far"]).status.success());
}

/// Answers as a server that hosts `time` would, and tells what it was asked.
fn answer(listener: &UnixListener, requests: usize) -> Vec<String> {
    let mut asked = Vec::new();
    for stream in listener.incoming().take(requests) {
        let mut stream = stream.expect("a connection");
        let mut request = Vec::new();
        let mut buffer = [0; 4096];
        while !request.windows(4).any(|window| window == b"\r\n\r\n") {
            let length = stream.read(&mut buffer).expect("it is read");
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
            _ => (404, json!({"error": "server not found: a b", "recovery_suggestions": ["look again"]})),
        };
        let body = body.to_string();
        write!(stream, "HTTP/1.1 {status} X\r\nContent-Length: {}\r\n\r\n{body}", body.len()).expect("it is answered");
        asked.push(line);
    }
    asked
}

#[test]
fn what_a_server_that_runs_says_is_shown() {
    let desk = Desk::new();
    desk.says(&["add", "time", "--", "x"]);
    desk.says(&["add", "other", "--", "x"]);
    std::fs::create_dir(desk.at("state/servers")).expect("it is made");
    let listener =
        UnixListener::bind(desk.at(&format!("state/servers/{}.sock", std::process::id()))).expect("it listens");
    let server = std::thread::spawn(move || answer(&listener, 6));
    assert_eq!(desk.listed(), pairs(&[("other", "not running"), ("time", "connected")]));
    assert!(desk.says(&["show", "time"]).contains("tool_count"));
    assert_eq!(desk.says(&["logs", "time"]), "ready\n\\u{1b}[31mred\n", "a terminal does not obey it");
    let tools = desk.says(&["tools", "time"]);
    assert!(tools.contains("now   yes") && tools.contains("zone  held"), "{tools}");
    assert_eq!(desk.says(&["pin", "time"]), "accepted 2 tools of time\n");
    assert!(desk.complains(&["tools", "a b"]).contains("error: server not found: a b\nhint: look again"));
    let asked = server.join().expect("it answered");
    assert_eq!(asked[5], "GET /v1/servers/a%20b/tools");
}
