//! What whoever starts a run has prepared: a root with a project in it, things outside of it, and a scope.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use ringfence_testkit::{Server, User};
use serde_json::{Value, json};
use tempfile::TempDir;

pub(super) struct Desk {
    pub(super) who: User,
    directory: TempDir,
    pub(super) state: Arc<TempDir>,
}

impl Desk {
    pub(super) fn of(who: User) -> Self {
        let desk = Self { who, directory: who.directory(), state: Arc::new(who.directory()) };
        for made in ["root", "root/project", "root/project/work", "root/other", "outside"] {
            fs::create_dir(desk.path(made)).expect("a directory");
            desk.give(made);
        }
        for (name, content) in [("root/project/content", "inside"), ("outside/content", "secret")] {
            fs::write(desk.path(name), content).expect("a file");
            desk.give(name);
        }
        desk
    }

    pub(super) fn path(&self, below: &str) -> PathBuf {
        self.directory.path().join(below)
    }

    /// Makes something belong to the user.
    fn give(&self, below: &str) {
        let (uid, gid) = self.who.ids();
        chown(self.path(below), Some(uid), Some(gid)).expect("its owner is set");
    }

    /// Writes a scope with some fields as given.
    pub(super) fn scope(&self, changes: &Value) -> String {
        let mut scope = json!({
            "session_id": "s-1",
            "run_id": "r-1",
            "drain": false,
            "capabilities": ["code", "command", "files.read", "files.write", "sessions", "servers", "memory"],
            "allowed_roots": [self.path("root")],
        });
        for (key, value) in changes.as_object().expect("fields") {
            scope[key] = value.clone();
        }
        let path = self.path("scope.json");
        fs::write(&path, scope.to_string()).expect("it is written");
        self.give("scope.json");
        self.allow(0o600);
        text(&path)
    }

    pub(super) fn allow(&self, mode: u32) {
        fs::set_permissions(self.path("scope.json"), fs::Permissions::from_mode(mode)).expect("it is ours");
    }

    pub(super) fn serve(&self, scope: &Value, options: &[&str]) -> Server {
        let scope = self.scope(scope);
        let options: Vec<&str> = ["--scope", &scope].into_iter().chain(options.iter().copied()).collect();
        Server::start_in(self.who, Arc::clone(&self.state), &options, &[])
    }

    /// What a server says that does not start.
    pub(super) fn refusal(&self, options: &[&str]) -> String {
        let mut command = self.who.ringfence();
        command.args(["serve", "--port", "0"]).args(options);
        self.refused(command)
    }

    /// The same of any way to start one.
    pub(super) fn refused(&self, mut command: Command) -> String {
        command.env("RINGFENCE_STATE_DIR", self.state.path());
        let mut process = command.stdout(Stdio::null()).spawn().expect("it runs");
        let mut said = String::new();
        for line in BufReader::new(process.stderr.take().expect("stderr is piped")).lines() {
            let line = line.expect("it is text");
            if line.contains("serving MCP at") {
                process.kill().expect("it can be killed");
                let _ = process.wait();
                panic!("it starts: {said}");
            }
            said += &line;
            said.push('\n');
        }
        assert_eq!(process.wait().expect("it ends").code(), Some(125), "{said}");
        said
    }

    /// A volume of a directory, at `/shown`.
    pub(super) fn volume(&self, below: &str, access: &str) -> String {
        format!("--volume={}:/shown:{access}", self.path(below).display())
    }

    /// A configuration file.
    pub(super) fn config(&self, content: &str) -> String {
        let path = self.path("ringfence.toml");
        fs::write(&path, content).expect("it is written");
        self.give("ringfence.toml");
        text(&path)
    }
}

pub(super) fn text(path: &Path) -> String {
    path.to_str().expect("it is text").to_owned()
}

/// The names of what is listed.
pub(super) fn tools(server: &Server) -> Vec<String> {
    let list = server.request("tools/list", &json!({}));
    let tools = list["result"]["tools"].as_array().unwrap_or_else(|| panic!("{list}"));
    tools.iter().filter_map(|tool| tool["name"].as_str()).map(str::to_owned).collect()
}

pub(super) fn is_denied(answer: &Value) -> bool {
    answer["error"]["data"]["error_code"] == "POLICY_DENIED"
}

/// A REST request, with its status and answer.
pub(super) fn rest(server: &Server, request: &str, body: &Value) -> (u16, Value) {
    let headers = format!("Host: {}\r\nContent-Type: application/json\r\n", server.address);
    let (status, body) = server.http(request, &headers, &body.to_string());
    (status, serde_json::from_str(&body).unwrap_or(Value::Null))
}

/// Runs code, and gives all that is known of it.
pub(super) fn run(server: &Server, template: &str, code: &str) -> Value {
    let answer = server.call("execute_code", &json!({"code": code, "template": template}));
    let content = answer["result"]["structuredContent"].clone();
    assert!(content.is_object(), "{answer}");
    content
}
