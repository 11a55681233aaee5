//! Other gateways from standard streams to HTTP, where they are installed.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, Result, bail};

use super::{DEADLINE, upstream};

/// Dropped, it is ended, and its upstream with it: that loses its input.
pub(super) struct Peer {
    process: Child,
    port: u16,
}

impl Peer {
    /// From PyPI.
    pub(super) fn mcp_proxy(program: &Path) -> Result<Self> {
        Self::start("mcp-proxy", |port| {
            let own = ["--host", "127.0.0.1", "--port", &port.to_string(), "--log-level", "ERROR", "--"];
            own.map(ToOwned::to_owned).into_iter().chain(upstream(program)).collect()
        })
    }

    /// From npm.
    pub(super) fn supergateway(program: &Path) -> Result<Self> {
        Self::start("supergateway", |port| {
            let own = ["--outputTransport", "streamableHttp", "--stateful", "--logLevel", "none", "--port"];
            let more = [port.to_string(), "--stdio".to_owned(), upstream(program).join(" ")];
            own.map(ToOwned::to_owned).into_iter().chain(more).collect()
        })
    }

    pub(super) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    fn start(name: &str, arguments: impl Fn(u16) -> Vec<String>) -> Result<Self> {
        let program = on_path(name).with_context(|| format!("{name} is not installed"))?;
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = free.local_addr()?.port();
        drop(free);
        let mut command = Command::new(program);
        command.args(arguments(port)).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut peer = Self { process: command.spawn().with_context(|| format!("{name} cannot be started"))?, port };
        let deadline = Instant::now() + DEADLINE;
        while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
            if Instant::now() > deadline || peer.process.try_wait()?.is_some() {
                bail!("{name} does not listen");
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        Ok(peer)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|directory| directory.join(name)).find(|program| program.is_file())
}
