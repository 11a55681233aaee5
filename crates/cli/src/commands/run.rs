//! `ringfence run`: runs one command in a new sandbox, with the streams, signals and exit code of this process.

mod attach;
mod egress;
mod outcome;
mod pump;
mod terminal;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use ringfence_backend::interpreter;
use ringfence_servers::import::client_files;

use ringfence_config::{ProtectedPaths, VolumeRefused};
use ringfence_core::{Flavor, Network, Spec, Template, Volume, bytes, proxy_environment};
use ringfence_egress::Policy;
use ringfence_sandbox::Stdio;
use rustix::termios::{isatty, tcgetwinsize};

use crate::configuration::sources;
use crate::failure::Failure;
use crate::options::{AcceptOption, EnvironmentOption, NetworkOption, VolumeOption, seconds};
use egress::{Authority, Egress, ShownDecisions};

/// Run one command in a new sandbox.
///
/// Standard streams, signals and the exit code are passed through, so `ringfence run --` can be put before any command,
/// for example before an MCP server in the configuration of a client. The command sees /usr of the host read-only and an
/// empty /workspace. It has no network, sees no other processes, and gets no environment variables of the host.
///
/// Exit codes: that of the command; 128+n if signal n ended it; 124 after the timeout; 125 if ringfence failed; 126 if
/// the command cannot be executed; 127 if it is not found.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The template of the sandbox: python, node or bash
    #[arg(long, default_value = "python")]
    template: Template,
    /// The size of the sandbox: small (1 CPU, 1 GiB), medium (2 CPUs, 2 GiB) or large (4 CPUs, 4 GiB)
    #[arg(long, default_value = "small")]
    flavor: Flavor,
    /// Mount a directory or file of the host in the sandbox, read-only unless `rw` is given
    #[arg(long = "volume", short = 'v', value_name = "HOST:GUEST[:ro|rw]")]
    volumes: Vec<VolumeOption>,
    /// In read-write volumes, also protect names that do not exist yet, and make git repositories read-only
    #[arg(long)]
    strict_volumes: bool,
    /// The network access: `none`, or `allow=HOST[:PORT][+private],…` for hosts that the egress proxy allows. A host may be
    /// followed by the allowed requests: `allow=HOST method=GET path=/docs/*`
    #[arg(long, default_value = "none", value_name = "none|allow=HOST,…")]
    network: NetworkOption,
    /// Memory limit of all processes together, for example 512M
    #[arg(long, value_parser = bytes::parse)]
    memory: Option<u64>,
    /// Maximum number of processes and threads together
    #[arg(long)]
    pids: Option<u32>,
    /// CPU limit, for example 0.5
    #[arg(long)]
    cpus: Option<f64>,
    /// Maximum number of open files per process; at most 512 if the sandbox runs with your uid
    #[arg(long)]
    nofile: Option<u32>,
    /// Size limit of all files in /workspace, /tmp and /dev/shm together, for example 64M
    #[arg(long, value_parser = bytes::parse)]
    workspace: Option<u64>,
    /// Maximum number of files and directories in /workspace, /tmp and /dev/shm together
    #[arg(long)]
    workspace_inodes: Option<u64>,
    /// Stop the command after this many seconds
    #[arg(long, value_parser = seconds)]
    timeout: Option<Duration>,
    /// Set an environment variable; without a value, it is passed on from the host
    #[arg(long = "env", short = 'e', value_name = "NAME[=VALUE]")]
    environment: Vec<EnvironmentOption>,
    /// The working directory of the command [default: /workspace]
    #[arg(long)]
    workdir: Option<PathBuf>,
    /// Log all decisions of the egress proxy to standard error, not only refusals
    #[arg(long)]
    verbose: bool,
    /// Accept a host without these protections: a list of cgroup, own-uid and landlock, or none [default: cgroup,own-uid]
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
    spec.protected_paths = protected_paths(&spec.volumes)?;
    if arguments.strict_volumes {
        let configuration = ringfence_config::load(&sources(None, Vec::new()))?;
        spec.strict_volumes = Some(configuration.volume_lock_directory()?);
    }
    let rules = match arguments.network {
        NetworkOption::None => Vec::new(),
        NetworkOption::Allow(rules) => rules,
    };
    let shown = if arguments.verbose { ShownDecisions::All } else { ShownDecisions::Refusals };
    let authority = Authority::add_to(&mut spec, &rules)?;
    attach::run(&spec, stdio, Egress { rules, shown, authority }, arguments.timeout)
}

/// Returns the paths in the volumes that belong to servers of this user. Guests must not reach them: sockets among them
/// give access to the host.
fn protected_paths(volumes: &[Volume]) -> Result<Vec<PathBuf>, Failure> {
    if volumes.is_empty() {
        return Ok(Vec::new());
    }
    let sources = sources(None, Vec::new());
    // An invalid configuration adds no paths, and does not prevent the command.
    let protected = {
        let configuration = ringfence_config::load(&sources).ok();
        ProtectedPaths::of_process(&sources, configuration.as_ref(), client_files(configuration.as_ref()))
    };
    protected.protect(volumes).map_err(|error| Failure::new(error.to_string()).hint(VolumeRefused::HINT))
}

impl Arguments {
    fn spec(&self, stdio: Stdio) -> Spec {
        let mut spec = self.template.spec(&self.flavor, self.command.clone());
        let limits = &mut spec.limits;
        limits.memory_bytes = self.memory.unwrap_or(limits.memory_bytes);
        limits.pids = self.pids.unwrap_or(limits.pids);
        limits.cpus = self.cpus.unwrap_or(limits.cpus);
        limits.open_files = self.nofile.unwrap_or(limits.open_files);
        // A workspace of default size has at most half of the memory.
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
        if let NetworkOption::Allow(rules) = &self.network {
            spec.network = Network::Egress { ports: Policy::named_ports(rules) };
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
        let names = [Some(self.template.language.interpreter()), self.command.first().and_then(|name| name.to_str())];
        for name in names.into_iter().flatten() {
            let Some(found) = interpreter::find(name) else { continue };
            if !spec.volumes.iter().any(|volume| volume.guest == found.volume.guest) {
                spec.volumes.push(found.volume);
            }
            let path = spec.environment.entry("PATH".into()).or_default();
            *path = format!("{}:{path}", found.directory.display());
        }
    }
}
