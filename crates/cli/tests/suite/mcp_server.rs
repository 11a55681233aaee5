//! A real MCP server from npm behind `ringfence run`, as in the configuration of a client.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ringfence_testkit::{User, for_each_user, skip};
use serde_json::{Value, json};

use crate::BINARY;

/// The MCP server that `scripts/test` has fetched.
struct Fetched {
    cache: PathBuf,
    server: String,
    registry: String,
}

fn fetched(test: &str) -> Option<Fetched> {
    let variable = |name: &str| std::env::var(name).ok();
    let values = variable("RINGFENCE_TEST_CACHE").zip(variable("RINGFENCE_TEST_SERVER_EVERYTHING"));
    let Some(((cache, server), registry)) = values.zip(variable("RINGFENCE_TEST_NPM_REGISTRY")) else {
        skip(test, "the MCP server is not fetched; ./scripts/test does that");
        return None;
    };
    Some(Fetched { cache: cache.into(), server, registry })
}

impl Fetched {
    /// Returns the arguments of `ringfence` that start the server from a copy of the package cache. npm writes to its
    /// cache even when it is offline, so the copy belongs to the user.
    fn arguments(&self, user: User, directory: &Path) -> Vec<String> {
        let copy = Command::new("cp").arg("-r").arg(self.cache.join("npm")).arg(directory).status();
        assert!(copy.expect("run cp").success());
        let (uid, gid) = user.ids();
        let chown = Command::new("chown").args(["-R", &format!("{uid}:{gid}")]).arg(directory).status();
        assert!(chown.expect("run chown").success());
        let volume = format!("{}:/npm:rw", directory.join("npm").display());
        let registry = format!("npm_config_registry={}", self.registry);
        ["run", "--volume", &volume, "--env", "npm_config_cache=/npm", "--env", "npm_config_offline=true"]
            .into_iter()
            .chain(["--env", &registry, "--", "npx", "-y", &self.server])
            .map(Into::into)
            .collect()
    }
}

#[test]
fn npm_server_works_over_stdio() {
    let Some(fetched) = fetched("npm_server_works_over_stdio") else { return };
    for_each_user("npm_server_works_over_stdio", |user| {
        let directory = user.directory();
        let arguments = fetched.arguments(user, directory.path());
        let mut command = user.ringfence();
        let mut child =
            command.args(&arguments).stdin(Stdio::piped()).stderr(Stdio::null()).spawn().expect("start ringfence");
        let mut stdin = child.stdin.take().expect("stdin is piped");
        let mut lines = BufReader::new(child.stdout.take().expect("stdout is piped")).lines();
        let mut request = |id: u32, method: &str, params: Value| -> Value {
            let message = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
            writeln!(stdin, "{message}").expect("send the request");
            // Notifications may come in between.
            let responses = lines.by_ref().map(|line| line.expect("read a line"));
            let mut responses = responses.filter_map(|line| serde_json::from_str::<Value>(&line).ok());
            responses.find(|response| response["id"] == id).expect("a response")
        };
        let client = json!({ "name": "test", "version": "1" });
        let initialized = request(
            1,
            "initialize",
            json!({ "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client }),
        );
        assert!(initialized["result"]["capabilities"]["tools"].is_object(), "{user:?}: {initialized}");
        let response = request(2, "tools/call", json!({ "name": "echo", "arguments": { "message": "hello" } }));
        assert_eq!(response["result"]["content"][0]["text"], "Echo: hello", "{user:?}: {response}");
        drop(stdin);
        // Clients close the input, then send SIGTERM.
        let _ = rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::TERM);
        child.wait().expect("wait for ringfence");
    });
}

#[test]
fn python_sdk_client_starts_npm_server_in_a_sandbox() {
    let Some(fetched) = fetched("python_sdk_client_starts_npm_server_in_a_sandbox") else { return };
    let directory = User::Root.directory();
    let arguments = fetched.arguments(User::Root, directory.path());
    let client = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/clients/stdio_client.py");
    let output =
        Command::new(fetched.cache.join("python/bin/python")).arg(client).arg(BINARY).args(&arguments).output();
    let output = output.expect("run the client");
    let text = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<&str> = text.lines().collect();
    assert!(matches!(lines[..], [_, tools, "Echo: through the ring fence"] if tools != "0"), "{output:?}");
}
