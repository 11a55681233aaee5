//! MCP clients and servers of other projects that `scripts/test` has downloaded, in the versions that it names.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::{skip, wait_until};

fn variable(name: &str) -> Option<String> {
    std::env::var(format!("RINGFENCE_TEST_{name}")).ok()
}

/// Returns the directory of the downloads. Records a skip if there is none.
pub fn download_cache(test: &str) -> Option<PathBuf> {
    let cache = variable("CACHE").map(PathBuf::from);
    if cache.is_none() {
        skip(test, "the MCP clients are not downloaded; ./scripts/test does that");
    }
    cache
}

/// The downloaded packages of MCP servers.
pub struct Downloads {
    cache: PathBuf,
    /// `@modelcontextprotocol/NAME@VERSION`, separated by spaces.
    npm: String,
    /// `NAME==VERSION`, separated by spaces.
    pypi: String,
    registry: String,
}

impl Downloads {
    /// Returns the downloads. Records a skip if they are missing.
    pub fn find(test: &str) -> Option<Self> {
        let find = || {
            let cache = variable("CACHE")?.into();
            let (npm, pypi) = (variable("NPM_SERVERS")?, variable("PYPI_SERVERS")?);
            Some(Self { cache, npm, pypi, registry: variable("NPM_REGISTRY")? })
        };
        let found = find();
        if found.is_none() {
            skip(test, "the MCP servers are not downloaded; ./scripts/test does that");
        }
        found
    }

    /// Returns an entry for a server from npm, in the form of its documentation.
    pub fn npm_entry(&self, name: &str, arguments: &[&str]) -> Value {
        let package = pinned(&self.npm, &format!("@modelcontextprotocol/{name}@"));
        let arguments: Vec<&str> = ["-y", package].iter().chain(arguments).copied().collect();
        json!({"command": "npx", "args": arguments, "env": {"npm_config_registry": self.registry}})
    }

    /// Returns an entry for a server from the Python package index.
    pub fn pypi_entry(&self, name: &str, arguments: &[&str]) -> Value {
        let package = pinned(&self.pypi, &format!("{name}=="));
        let arguments: Vec<&str> = [package].iter().chain(arguments).copied().collect();
        json!({"command": "uvx", "args": arguments, "env": {}})
    }
}

fn pinned<'a>(packages: &'a str, prefix: &str) -> &'a str {
    let found = packages.split(' ').find(|package| package.starts_with(prefix));
    found.unwrap_or_else(|| panic!("scripts/test does not download {prefix}: {packages}"))
}

/// server-everything as a remote server. It is killed when this is dropped.
pub struct RemoteServer {
    process: Child,
    pub port: u16,
}

impl RemoteServer {
    /// Starts it with the transport `sse` or `streamableHttp`.
    pub fn start(downloads: &Downloads, transport: &str) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        drop(listener);
        let program = "servers/node_modules/@modelcontextprotocol/server-everything/dist/index.js";
        let mut command = Command::new("node");
        command.arg(downloads.cache.join(program)).arg(transport).env("PORT", port.to_string());
        let process = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let server = Self { process: process.expect("start node"), port };
        wait_until("server-everything does not listen", || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok());
        server
    }
}

impl Drop for RemoteServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
