//! Other MCP gateways from stdio to streamable HTTP that ringfence is compared with, if they are installed.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use super::echo_stdio;
use crate::child::KillOnDrop;
use crate::programs::find_on_path;

/// Maximum time until a gateway listens, long enough for a busy machine.
const START_TIMEOUT: Duration = Duration::from_mins(2);

/// A gateway in front of [`echo_stdio`]. Dropping it kills the gateway; the echo server then exits, because its input
/// ends.
pub(crate) struct Proxy {
    process: KillOnDrop,
    port: u16,
}

impl Proxy {
    /// Starts `mcp-proxy`, a Python package.
    pub(crate) fn mcp_proxy(echo_program: &Path) -> Result<Self> {
        Self::start("mcp-proxy", |port| {
            let options = ["--host", "127.0.0.1", "--port", &port.to_string(), "--log-level", "ERROR", "--"];
            options.map(ToOwned::to_owned).into_iter().chain(echo_stdio::command_line(echo_program)).collect()
        })
    }

    /// Starts `supergateway`, an npm package.
    pub(crate) fn supergateway(echo_program: &Path) -> Result<Self> {
        Self::start("supergateway", |port| {
            let options = ["--outputTransport", "streamableHttp", "--stateful", "--logLevel", "none", "--port"];
            let upstream = echo_stdio::command_line(echo_program).join(" ");
            options.map(ToOwned::to_owned).into_iter().chain([port.to_string(), "--stdio".into(), upstream]).collect()
        })
    }

    /// Returns host and port.
    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    fn start(name: &str, arguments: impl Fn(u16) -> Vec<String>) -> Result<Self> {
        let program = find_on_path(name).with_context(|| format!("{name} is not installed"))?;
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let mut command = Command::new(program);
        command.args(arguments(port)).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let process = command.spawn().with_context(|| format!("cannot start {name}"))?;
        let mut proxy = Self { process: KillOnDrop(process), port };
        let deadline = Instant::now() + START_TIMEOUT;
        while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
            if Instant::now() > deadline || proxy.process.0.try_wait()?.is_some() {
                bail!("{name} does not listen on port {port}");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(proxy)
    }
}
