//! A server of this program as a child process. Dropped, it is ended.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::client::Client;
use super::memory::Tree;
use super::roles::{ECHO_ROLE, SERVER_ROLE};

/// More than a server takes to end all sessions.
const FAREWELL: Duration = Duration::from_secs(60);

/// To import numpy, pandas and matplotlib on a slow disk.
const WARM_UP: Duration = Duration::from_secs(60);

/// Sandboxes that wait ready unless the configuration says otherwise; asked of it, so that they never differ.
fn waiting(template: &str) -> usize {
    let settings = ringfence_config::Settings::default();
    settings.pool.get(template).copied().unwrap_or(0)
}

pub(super) struct Server {
    process: Child,
    pub(super) address: String,
    _directory: TempDir,
}

impl Server {
    /// `ringfence serve` with this configuration, and nothing else from outside.
    pub(super) fn start(configuration: &str) -> Result<Self> {
        let directory = tempfile::tempdir().context("there is no temporary directory")?;
        let file = directory.path().join("ringfence.toml");
        fs::write(&file, configuration)?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args([SERVER_ROLE, "--host", "127.0.0.1", "--port", "0", "--config"]).arg(file);
        Self::spawn(command, directory)
    }

    /// The bare server to compare with.
    pub(super) fn start_echo() -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(ECHO_ROLE);
        Self::spawn(command, tempfile::tempdir()?)
    }

    fn spawn(mut command: Command, directory: TempDir) -> Result<Self> {
        for (name, _) in std::env::vars_os() {
            if ["RINGFENCE_", "MCP_", "MSB_"].iter().any(|prefix| name.to_string_lossy().starts_with(prefix)) {
                command.env_remove(name);
            }
        }
        command.env("RINGFENCE_STATE_DIR", directory.path().join("state"));
        // Its end of standard input tells the server that this process lives.
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut process = command.spawn().context("the server cannot be started")?;
        let stderr = process.stderr.take().context("the server has no standard error")?;
        // From here on it is ended whatever happens.
        let mut server = Self { process, address: String::new(), _directory: directory };
        let mut lines = BufReader::new(stderr).lines().map_while(Result::ok);
        let mut said = String::new();
        let address = lines.by_ref().find_map(|line| {
            let address = line.split_once("http://").and_then(|(_, rest)| rest.strip_suffix("/mcp").map(Into::into));
            said = line;
            address
        });
        server.address = address.with_context(|| format!("the server did not start: {said}"))?;
        // Whatever else it logs must not fill the pipe.
        std::thread::spawn(move || lines.count());
        Ok(server)
    }

    pub(super) fn connect(&self) -> Result<Client> {
        Client::connect(&self.address)
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// The helper that makes its sandboxes; it is there once a session was.
    pub(super) fn launcher(&self, tree: &Tree) -> Result<u32> {
        tree.children(self.pid()).first().copied().context("the server has no launcher")
    }

    /// Uses a template once, and waits until as many sandboxes of it wait as should.
    pub(super) fn warm_up(&self, template: &str, code: &str) -> Result<()> {
        let below = || {
            let tree = Tree::look();
            self.launcher(&tree).map_or(0, |launcher| tree.children(launcher).len())
        };
        let before = below();
        // Beside the pool there is the zygote, from the first session on.
        let expected = before + waiting(template) + usize::from(before == 0 && template == "python");
        let mut client = self.connect()?;
        let id = client.create(template, code)?.session_id()?;
        client.stop(&id)?;
        let deadline = Instant::now() + WARM_UP;
        while below() < expected {
            if Instant::now() > deadline {
                bail!("the pool of {template} is not filled");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        // The last of them has been made, but its interpreter may not have started.
        std::thread::sleep(Duration::from_millis(300));
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.process), Signal::TERM);
        let deadline = Instant::now() + FAREWELL;
        while matches!(self.process.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
