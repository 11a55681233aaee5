//! A real MCP server from npm behind `ringfence run`, as it stands in a client's configuration.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ringfence_testkit::{User, for_each_user, skip};
use serde_json::{Value, json};

use crate::BINARY;

/// What `scripts/test` has fetched.
struct Fetched {
    cache: PathBuf,
    server: String,
    registry: String,
}

fn fetched(test: &str) -> Option<Fetched> {
    let variable = |name: &str| std::env::var(name).ok();
    let found = variable("RINGFENCE_TEST_CACHE").zip(variable("RINGFENCE_TEST_SERVER_EVERYTHING"));
    let Some(((cache, server), registry)) = found.zip(variable("RINGFENCE_TEST_NPM_REGISTRY")) else {
        skip(test, "the MCP server is not fetched; ./scripts/test does that");
        return None;
    };
    Some(Fetched { cache: cache.into(), server, registry })
}

impl Fetched {
    /// The arguments of `ringfence` that start the server from a copy of the package cache. npm writes to
    /// its cache even when it is offline, so the copy is the user's own.
    fn arguments(&self, who: User, directory: &Path) -> Vec<String> {
        let copied = Command::new("cp").arg("-r").arg(self.cache.join("npm")).arg(directory).status();
        assert!(copied.expect("cp runs").success());
        let (uid, gid) = who.ids();
        let owned = Command::new("chown").args(["-R", &format!("{uid}:{gid}")]).arg(directory).status();
        assert!(owned.expect("chown runs").success());
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
fn a_server_from_npm_works_over_stdio() {
    let Some(fetched) = fetched("a_server_from_npm") else { return };
    for_each_user("a_server_from_npm", |who| {
        let directory = who.directory();
        let arguments = fetched.arguments(who, directory.path());
        let mut command = who.ringfence();
        let mut child =
            command.args(&arguments).stdin(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it starts");
        let mut stdin = child.stdin.take().expect("stdin is piped");
        let mut lines = BufReader::new(child.stdout.take().expect("stdout is piped")).lines();
        let mut ask = |id: u32, method: &str, params: Value| -> Value {
            let request = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
            writeln!(stdin, "{request}").expect("the server reads");
            // Notifications may come in between.
            let answers = lines.by_ref().map(|line| line.expect("the server writes UTF-8"));
            let mut answers = answers.filter_map(|line| serde_json::from_str::<Value>(&line).ok());
            answers.find(|answer| answer["id"] == id).expect("an answer")
        };
        let client = json!({ "name": "test", "version": "1" });
        let started =
            ask(1, "initialize", json!({ "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client }));
        assert!(started["result"]["capabilities"]["tools"].is_object(), "{who:?}: {started}");
        let answer = ask(2, "tools/call", json!({ "name": "echo", "arguments": { "message": "hello" } }));
        assert_eq!(answer["result"]["content"][0]["text"], "Echo: hello", "{who:?}: {answer}");
        drop(stdin);
        // As a client does it: close the input, then ask to end.
        let _ = rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::TERM);
        child.wait().expect("it ends");
    });
}

#[test]
fn a_real_client_starts_it_by_its_configuration() {
    let Some(fetched) = fetched("a_real_client") else { return };
    let directory = User::Root.directory();
    let arguments = fetched.arguments(User::Root, directory.path());
    let client = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/clients/stdio_client.py");
    let output =
        Command::new(fetched.cache.join("python/bin/python")).arg(client).arg(BINARY).args(&arguments).output();
    let output = output.expect("the client runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<&str> = text.lines().collect();
    assert!(matches!(lines[..], [_, tools, "Echo: through the ring fence"] if tools != "0"), "{output:?}");
}
