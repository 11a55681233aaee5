//! `ringfence run`: one command in a fresh sandbox, as if it ran here.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use ringfence_backend::interpreter;
use ringfence_servers::import::client_files;

use ringfence_config::{NotKept, Own};
use ringfence_core::Flavor;
use ringfence_core::{Network, Spec, Volume, bytes};
use ringfence_core::{Template, proxy_environment};
use ringfence_sandbox::Stdio;
use rustix::termios::{isatty, tcgetwinsize};

use crate::attach;
use crate::attach::{Egress, Logged};
use crate::failure::Failure;
use crate::options::{AcceptOption, EnvironmentOption, NetworkOption, VolumeOption, seconds};

/// Run one command in a fresh sandbox.
///
/// Standard streams, signals and the exit code are passed on, so that it can stand before any command,
/// also before an MCP server in a client's configuration. The command sees the host's /usr read-only, an
/// empty /workspace, no network, no other process, and none of the host's environment.
///
/// Exit codes: the command's own; 128+n when a signal ended it; 124 after the timeout; 125 when ringfence
/// failed; 126 when the command cannot be executed; 127 when it is not found.
#[derive(Args)]
pub(crate) struct Arguments {
    /// What the sandbox is for: python, node or bash
    #[arg(long, default_value = "python")]
    template: Template,
    /// Its size: small (1 CPU, 1 GiB), medium (2, 2 GiB) or large (4, 4 GiB)
    #[arg(long, default_value = "small")]
    flavor: Flavor,
    /// Show a directory or file of the host, read-only unless `rw`
    #[arg(long = "volume", short = 'v', value_name = "HOST:GUEST[:ro|rw]")]
    volumes: Vec<VolumeOption>,
    /// In read-write volumes, hold protected names that do not exist yet, and keep repositories read-only
    #[arg(long)]
    strict_volumes: bool,
    /// `none`, or `allow=HOST[:PORT][+private],…`: hosts that may be reached through the egress proxy
    #[arg(long, default_value = "none", value_name = "none|allow=HOST,…")]
    network: NetworkOption,
    /// Memory of all processes together, such as 512M
    #[arg(long, value_parser = bytes::parse)]
    memory: Option<u64>,
    /// Processes and threads together
    #[arg(long)]
    pids: Option<u32>,
    /// CPUs, such as 0.5
    #[arg(long)]
    cpus: Option<f64>,
    /// Open files of each process; at most 512 in a sandbox that runs with your own uid
    #[arg(long)]
    nofile: Option<u32>,
    /// Size of all that is written to /workspace, /tmp and /dev/shm
    #[arg(long, value_parser = bytes::parse)]
    workspace: Option<u64>,
    /// Files and directories there
    #[arg(long)]
    workspace_inodes: Option<u64>,
    /// End the command after so many seconds
    #[arg(long, value_parser = seconds)]
    timeout: Option<Duration>,
    /// Set a variable, or pass on the host's own value
    #[arg(long = "env", short = 'e', value_name = "NAME[=VALUE]")]
    environment: Vec<EnvironmentOption>,
    /// Where the command starts [default: /workspace]
    #[arg(long)]
    workdir: Option<PathBuf>,
    /// Log every decision of the egress proxy on standard error, not only refusals
    #[arg(long)]
    verbose: bool,
    /// Weaknesses of the host that are acceptable: cgroup, own-uid, landlock, or none [default: cgroup,own-uid]
    #[arg(long)]
    accept: Option<AcceptOption>,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

pub(crate) fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    let stdio = match tcgetwinsize(rustix::stdio::stdin()) {
        Ok(size) if isatty(rustix::stdio::stdout()) => Stdio::Terminal(size),
        _ => Stdio::Pipes,
    };
    let mut spec = arguments.spec(stdio);
    spec.protected_paths = kept(&spec.volumes)?;
    if arguments.strict_volumes {
        let configuration = ringfence_config::load(&super::config::sources(None, Vec::new()))?;
        spec.strict_volumes = Some(configuration.volume_locks()?);
    }
    let rules = match arguments.network {
        NetworkOption::None => Vec::new(),
        NetworkOption::Allow(rules) => rules,
    };
    let logged = if arguments.verbose { Logged::Everything } else { Logged::Refusals };
    attach::run(&spec, stdio, Egress { rules, logged }, arguments.timeout)
}

/// What of the volumes belongs to servers of this user, whose sockets lead to the host.
fn kept(volumes: &[Volume]) -> Result<Vec<PathBuf>, Failure> {
    if volumes.is_empty() {
        return Ok(Vec::new());
    }
    let sources = super::config::sources(None, Vec::new());
    // One that does not hold names no other places, and keeps no command from being run.
    let own = {
        let configuration = ringfence_config::load(&sources).ok();
        Own::of(&sources, configuration.as_ref(), client_files(configuration.as_ref()))
    };
    own.keep(volumes).map_err(|error| Failure::new(error.to_string()).hint(NotKept::HINT))
}

impl Arguments {
    fn spec(&self, stdio: Stdio) -> Spec {
        let mut spec = self.template.spec(&self.flavor, self.command.clone());
        let limits = &mut spec.limits;
        limits.memory_bytes = self.memory.unwrap_or(limits.memory_bytes);
        limits.pids = self.pids.unwrap_or(limits.pids);
        limits.cpus = self.cpus.unwrap_or(limits.cpus);
        limits.open_files = self.nofile.unwrap_or(limits.open_files);
        // A workspace that nobody asked for follows the memory down.
        let half = limits.memory_bytes / 2;
        spec.workspace.bytes = self.workspace.unwrap_or(spec.workspace.bytes.min(half));
        spec.workspace.inodes = self.workspace_inodes.unwrap_or(spec.workspace.inodes);
        if let Some(accept) = &self.accept {
            spec.accept.clone_from(&accept.0);
        }
        if let (Some(workdir), Some(command)) = (&self.workdir, &mut spec.command) {
            command.workdir.clone_from(workdir);
        }
        spec.volumes = self.volumes.iter().map(|option| option.0.clone()).collect();
        self.add_interpreters(&mut spec);
        if let NetworkOption::Allow(_) = self.network {
            spec.network = Network::Proxy;
            spec.environment.extend(proxy_environment());
        }
        if matches!(stdio, Stdio::Terminal(_))
            && let Ok(terminal) = std::env::var("TERM")
        {
            spec.environment.insert("TERM".into(), terminal);
        }
        for option in &self.environment {
            spec.environment.insert(option.name.clone(), option.value.clone());
        }
        spec
    }

    fn add_interpreters(&self, spec: &mut Spec) {
        let wanted = [Some(self.template.language.interpreter()), self.command.first().and_then(|name| name.to_str())];
        for name in wanted.into_iter().flatten() {
            let Some(found) = interpreter::find(name) else { continue };
            if !spec.volumes.iter().any(|volume| volume.guest == found.volume.guest) {
                spec.volumes.push(found.volume);
            }
            let path = spec.environment.entry("PATH".into()).or_default();
            *path = format!("{}:{path}", found.directory.display());
        }
    }
}
