//! Files of a run with a scope: an allowed root with a project in it, files outside of the root, and the scope file.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use ringfence_testkit::{Server, User};
use serde_json::{Value, json};
use tempfile::TempDir;

pub(super) struct Fixture {
    pub(super) user: User,
    directory: TempDir,
    pub(super) state: Arc<TempDir>,
}

impl Fixture {
    pub(super) fn new(user: User) -> Self {
        let fixture = Self { user, directory: user.directory(), state: Arc::new(user.directory()) };
        for directory in ["root", "root/project", "root/project/work", "root/other", "outside"] {
            fs::create_dir(fixture.path(directory)).expect("directory is created");
            fixture.set_owner(directory);
        }
        for (name, content) in [("root/project/content", "inside"), ("outside/content", "secret")] {
            fs::write(fixture.path(name), content).expect("file is written");
            fixture.set_owner(name);
        }
        fixture
    }

    pub(super) fn path(&self, below: &str) -> PathBuf {
        self.directory.path().join(below)
    }

    /// Makes the user the owner of a path.
    fn set_owner(&self, below: &str) {
        let (uid, gid) = self.user.ids();
        chown(self.path(below), Some(uid), Some(gid)).expect("owner is set");
    }

    /// Writes the scope file, with the fields of `changes` set, and returns its path.
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
        fs::write(&path, scope.to_string()).expect("file is written");
        self.set_owner("scope.json");
        self.set_scope_mode(0o600);
        text(&path)
    }

    /// Sets the mode of the scope file.
    pub(super) fn set_scope_mode(&self, mode: u32) {
        fs::set_permissions(self.path("scope.json"), fs::Permissions::from_mode(mode)).expect("file is accessible");
    }

    /// Starts a server with a scope.
    pub(super) fn serve(&self, scope: &Value, options: &[&str]) -> Server {
        let scope = self.scope(scope);
        let options: Vec<&str> = ["--scope", &scope].into_iter().chain(options.iter().copied()).collect();
        Server::start_in(self.user, Arc::clone(&self.state), &options, &[])
    }

    /// Returns the standard error of a `serve` that is expected to fail.
    pub(super) fn failed_serve(&self, options: &[&str]) -> String {
        let mut command = self.user.ringfence();
        command.args(["serve", "--port", "0"]).args(options);
        self.failed_start(command)
    }

    /// Returns the standard error of a command that is expected to fail instead of serving.
    pub(super) fn failed_start(&self, mut command: Command) -> String {
        command.env("RINGFENCE_STATE_DIR", self.state.path());
        let mut process = command.stdout(Stdio::null()).spawn().expect("command runs");
        let mut stderr = String::new();
        for line in BufReader::new(process.stderr.take().expect("stderr is piped")).lines() {
            let line = line.expect("valid UTF-8");
            if line.contains("serving MCP at") {
                process.kill().expect("process is killed");
                let _ = process.wait();
                panic!("the server starts: {stderr}");
            }
            stderr += &line;
            stderr.push('\n');
        }
        assert_eq!(process.wait().expect("process exits").code(), Some(125), "{stderr}");
        stderr
    }

    /// Returns the option that mounts a directory at `/shown`.
    pub(super) fn volume(&self, below: &str, access: &str) -> String {
        format!("--volume={}:/shown:{access}", self.path(below).display())
    }

    /// Writes a configuration file and returns its path.
    pub(super) fn config(&self, content: &str) -> String {
        let path = self.path("ringfence.toml");
        fs::write(&path, content).expect("file is written");
        self.set_owner("ringfence.toml");
        text(&path)
    }
}

pub(super) fn text(path: &Path) -> String {
    path.to_str().expect("valid UTF-8").to_owned()
}

/// Returns the names of the tools that are listed.
pub(super) fn tools(server: &Server) -> Vec<String> {
    let list = server.request("tools/list", &json!({}));
    let tools = list["result"]["tools"].as_array().unwrap_or_else(|| panic!("{list}"));
    tools.iter().filter_map(|tool| tool["name"].as_str()).map(str::to_owned).collect()
}

pub(super) fn is_denied(response: &Value) -> bool {
    let codes = [&response["error"]["data"]["error_code"], &response["result"]["structuredContent"]["error_code"]];
    codes.into_iter().any(|code| code == "POLICY_DENIED")
}

/// Sends a REST request and returns the status and the body of the response.
pub(super) fn rest(server: &Server, request: &str, body: &Value) -> (u16, Value) {
    let headers = format!("Host: {}\r\nContent-Type: application/json\r\n", server.address);
    let (status, body) = server.http(request, &headers, &body.to_string());
    (status, serde_json::from_str(&body).unwrap_or(Value::Null))
}

/// Runs code and returns its structured result.
pub(super) fn run(server: &Server, template: &str, code: &str) -> Value {
    let response = server.call("execute_code", &json!({"code": code, "template": template}));
    let content = response["result"]["structuredContent"].clone();
    assert!(content.is_object(), "{response}");
    content
}
