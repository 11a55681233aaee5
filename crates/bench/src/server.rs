//! A server in a child process. It is stopped when it is dropped.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::child::{bound_command, release};
use crate::client::Client;
use crate::peers::echo_http;
use crate::process_memory::ProcessTree;
use crate::programs::own_path;

/// Longer than a server takes to stop all sessions.
const STOP_TIMEOUT: Duration = Duration::from_mins(1);

/// Long enough to import numpy, pandas and matplotlib from a slow disk.
const WARM_UP_TIMEOUT: Duration = Duration::from_mins(1);

/// Variables with these prefixes configure ringfence, and must not affect a measurement.
const CONFIGURATION_PREFIXES: [&str; 3] = ["RINGFENCE_", "MCP_", "MSB_"];

pub(crate) struct Server {
    process: Child,
    /// Host and port.
    pub(crate) address: String,
    _directory: TempDir,
}

/// A server whose process exists, but does not yet execute the server's program.
pub(crate) struct PreparedServer {
    server: Server,
    stdin: ChildStdin,
}

impl Server {
    /// Prepares `ringfence serve` with this configuration file alone.
    pub(crate) fn prepare(ringfence: &Path, configuration: &str) -> Result<PreparedServer> {
        Self::prepare_with_variables(ringfence, configuration, &[])
    }

    /// The same with additional environment variables.
    pub(crate) fn prepare_with_variables(
        ringfence: &Path,
        configuration: &str,
        variables: &[(&str, &Path)],
    ) -> Result<PreparedServer> {
        let directory = tempfile::tempdir().context("cannot create a temporary directory")?;
        let file = directory.path().join("ringfence.toml");
        std::fs::write(&file, configuration)?;
        let mut command = bound_command(ringfence)?;
        command.args(["serve", "--host", "127.0.0.1", "--port", "0", "--config"]).arg(file);
        command.envs(variables.iter().copied());
        PreparedServer::spawn(command, directory)
    }

    /// Prepares the bare rmcp server of [`echo_http`].
    pub(crate) fn prepare_echo() -> Result<PreparedServer> {
        let mut command = bound_command(&own_path()?)?;
        command.arg(echo_http::ROLE);
        PreparedServer::spawn(command, tempfile::tempdir()?)
    }

    pub(crate) fn connect(&self) -> Result<Client> {
        Client::connect(&self.address)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Returns the process that creates the sandboxes. It exists once the server has created a session.
    pub(crate) fn launcher(&self, tree: &ProcessTree) -> Result<u32> {
        tree.children(self.pid()).first().copied().context("the server has no launcher")
    }

    /// Uses a template once and waits until its pool is full.
    pub(crate) fn warm_up(&self, template: &str, code: &str) -> Result<()> {
        let launched = || {
            let tree = ProcessTree::read();
            self.launcher(&tree).map_or(0, |launcher| tree.children(launcher).len())
        };
        let before = launched();
        // The first Python session also starts the zygote.
        let zygotes = usize::from(before == 0 && template == "python");
        let expected = before + default_pool_size(template) + zygotes;
        let mut client = self.connect()?;
        let id = client.create_session(template, code)?.session_id()?;
        client.stop_session(&id)?;
        let deadline = Instant::now() + WARM_UP_TIMEOUT;
        while launched() < expected {
            if Instant::now() > deadline {
                bail!("the pool of {template} was not filled within {} s", WARM_UP_TIMEOUT.as_secs());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        // The last sandbox exists, but its interpreter may still be starting.
        std::thread::sleep(Duration::from_millis(300));
        Ok(())
    }
}

impl PreparedServer {
    fn spawn(mut command: Command, directory: TempDir) -> Result<Self> {
        for (name, _) in std::env::vars_os() {
            if CONFIGURATION_PREFIXES.iter().any(|prefix| name.to_string_lossy().starts_with(prefix)) {
                command.env_remove(name);
            }
        }
        command.env("RINGFENCE_STATE_DIR", directory.path().join("state"));
        command.env("RINGFENCE_CACHE_DIR", directory.path().join("cache"));
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let mut process = command.spawn().context("cannot start the server")?;
        let stdin = process.stdin.take();
        // From here on the process is stopped in every case.
        let server = Server { process, address: String::new(), _directory: directory };
        Ok(Self { server, stdin: stdin.context("the server has no standard input")? })
    }

    /// Executes the server's program and waits until it logs its address.
    pub(crate) fn start(self) -> Result<Server> {
        let Self { mut server, mut stdin } = self;
        release(&mut stdin)?;
        let stderr = server.process.stderr.take().context("the server has no standard error")?;
        let mut lines = BufReader::new(stderr).lines().map_while(Result::ok);
        let mut last_line = String::new();
        let address = lines.by_ref().find_map(|line| {
            let address = line.split_once("http://").and_then(|(_, rest)| rest.strip_suffix("/mcp").map(Into::into));
            last_line = line;
            address
        });
        server.address = address.with_context(|| format!("the server did not start: {last_line}"))?;
        // Read the rest, so that the pipe never fills up.
        std::thread::spawn(move || lines.count());
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.process), Signal::TERM);
        let deadline = Instant::now() + STOP_TIMEOUT;
        while matches!(self.process.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Returns the number of sandboxes in the pool of a template by default.
fn default_pool_size(template: &str) -> usize {
    ringfence_config::SessionSettings::default().pool.get(template).copied().unwrap_or(0)
}
