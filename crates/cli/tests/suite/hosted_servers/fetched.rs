//! The servers that `scripts/test` has fetched, in the versions that it names.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ringfence_testkit::skip;
use serde_json::{Value, json};

pub(crate) struct Fetched {
    cache: PathBuf,
    /// `@modelcontextprotocol/NAME@VERSION`, with spaces between.
    npm: String,
    /// `NAME==VERSION`
    pypi: String,
    registry: String,
}

impl Fetched {
    pub(crate) fn look(test: &str) -> Option<Self> {
        let variable = |name: &str| std::env::var(format!("RINGFENCE_TEST_{name}")).ok();
        let found = || {
            let cache = variable("CACHE")?.into();
            let (npm, pypi) = (variable("NPM_SERVERS")?, variable("PYPI_SERVERS")?);
            Some(Self { cache, npm, pypi, registry: variable("NPM_REGISTRY")? })
        };
        let found = found();
        if found.is_none() {
            skip(test, "the MCP servers are not fetched; ./scripts/test does that");
        }
        found
    }

    /// An entry for a server from npm, as its documentation has it.
    pub(crate) fn npm(&self, name: &str, arguments: &[&str]) -> Value {
        let package = pinned(&self.npm, &format!("@modelcontextprotocol/{name}@"));
        let arguments: Vec<&str> = ["-y", package].iter().chain(arguments).copied().collect();
        json!({"command": "npx", "args": arguments, "env": {"npm_config_registry": self.registry}})
    }

    /// An entry for a server from the Python index.
    pub(crate) fn pypi(&self, name: &str, arguments: &[&str]) -> Value {
        let package = pinned(&self.pypi, &format!("{name}=="));
        let arguments: Vec<&str> = [package].iter().chain(arguments).copied().collect();
        json!({"command": "uvx", "args": arguments, "env": {}})
    }
}

fn pinned<'a>(packages: &'a str, beginning: &str) -> &'a str {
    let found = packages.split(' ').find(|package| package.starts_with(beginning));
    found.unwrap_or_else(|| panic!("scripts/test does not fetch {beginning}: {packages}"))
}

/// server-everything as somebody else runs it, reached by its address. Dropped, it is killed.
pub(crate) struct Remote {
    process: Child,
    pub(crate) port: u16,
}

impl Remote {
    /// `sse` or `streamableHttp`.
    pub(crate) fn start(fetched: &Fetched, transport: &str) -> Self {
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
        let port = free.local_addr().expect("it has an address").port();
        drop(free);
        let program = "servers/node_modules/@modelcontextprotocol/server-everything/dist/index.js";
        let mut command = Command::new("node");
        command.arg(fetched.cache.join(program)).arg(transport).env("PORT", port.to_string());
        let process = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let remote = Self { process: process.expect("node runs"), port };
        let deadline = Instant::now() + Duration::from_secs(60);
        while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
            assert!(Instant::now() < deadline, "server-everything does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        remote
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
