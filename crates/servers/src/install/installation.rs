//! One installation: launches its sandbox, copies the project in if needed, and runs the commands of the package
//! manager.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ringfence_core::{Command, Volume, WORKSPACE};

use super::interpreters;
use super::package_cache::TEMPORARY_DIRECTORY;
use super::registries::{self, PIP_DIRECTORY, PythonInstaller, RegistryAccess};
use super::size_limit;
use super::steps::{self, Step};
use crate::context::Context;
use crate::phase::{Phase, StartFailure};
use crate::plan::{Dependency, Ecosystem, MappedDirectory};
use crate::server_sandbox::{
    ProcessExit, RefusalReport, ServerEgress, ServerSandbox, StderrTail, add_interpreters, egress_rules, read_head,
    sandbox_spec,
};
use crate::staging::{self, CopyLimits, Project};
use ringfence_backend::interpreter;
use ringfence_core::proxy_environment;
use ringfence_entries::SandboxSettings;

/// Programs that are mounted for an installation if they are outside of the paths that every sandbox sees.
const INTERPRETERS: [&str; 4] = ["python3", "node", "npm", "uv"];

/// Maximum number of characters of a package manager's error output in a failure.
const MAX_OUTPUT_CHARS: usize = 500;

/// Timeout for the start of a package manager.
const START_TIMEOUT: Duration = Duration::from_secs(30);

pub(super) struct Installation {
    pub(super) context: Arc<Context>,
    pub(super) dependency: Dependency,
    pub(super) image: Option<PathBuf>,
    pub(super) project: Option<MappedDirectory>,
    /// The directory to install into, inside the sandbox.
    pub(super) prefix: PathBuf,
}

impl Installation {
    /// Installs into a volume, whose directory on the host is `directory`.
    pub(super) async fn run(&self, volume: Volume, directory: &Path) -> Result<(), StartFailure> {
        let (registry, installer) = self.registry_access().await?;
        let refused_connections: Arc<StderrTail> = Arc::default();
        let settings = SandboxSettings {
            image: self.image.clone(),
            cpus: Some(2.0),
            memory_mb: Some(2048),
            pids_limit: Some(512),
            ..SandboxSettings::default()
        };
        let allow: Vec<String> = registry.rules.iter().chain(&self.context.settings.install_allow).cloned().collect();
        let rules = egress_rules(&allow)?;
        let mut spec = sandbox_spec(&settings, &rules, &self.context.settings.accept);
        spec.volumes.push(volume);
        spec.volumes.extend(registry.volumes.iter().cloned());
        spec.files.extend(registry.files.clone());
        self.check_interpreters()?;
        add_interpreters(&mut spec, &INTERPRETERS);
        let path = spec.environment.get("PATH").cloned().unwrap_or_default();
        let limits = CopyLimits::of(&spec.workspace);
        let report = RefusalReport::Installation(Arc::clone(&refused_connections));
        let sandbox =
            ServerSandbox::launch(&self.context.backend, spec, ServerEgress { rules, credentials: None, report })
                .await?;
        if let (Some(project), true) = (&self.project, self.dependency.is_project()) {
            let MappedDirectory { host, guest, allowed_root } = project.clone();
            let project = Project { host: Some(host), allowed_root, guest, link: None };
            staging::copy_in(&sandbox, &project, limits).await?;
        }
        let environment = self.environment(&registry, &path);
        let work = self.run_steps(&sandbox, &environment, &installer);
        let result = tokio::select! {
            result = work => result,
            too_large = size_limit::wait_until_exceeded(directory) => Err(too_large),
        };
        // Nothing may write into the directory after it is renamed to its final name.
        sandbox.end().await;
        result.map_err(|failure| {
            let refused: Vec<String> = refused_connections.lines().into_iter().take(3).collect();
            if refused.is_empty() {
                return failure;
            }
            failure.hint(format!(
                "the installation was refused some connections ({}); add the hosts that it needs to `hosting.install_allow`",
                refused.join("; ")
            ))
        })
    }

    /// Refuses interpreters that guests could have written, because other servers run the packages that they install.
    fn check_interpreters(&self) -> Result<(), StartFailure> {
        // An image has its own interpreters.
        let names = INTERPRETERS.iter().filter(|_| self.image.is_none());
        for found in names.filter_map(|name| interpreter::find(name)) {
            let mounted = &found.volume.host;
            let checked = self.context.settings.guest_writable.check_tree(mounted);
            checked.map_err(|error| interpreters::refused(mounted, &error))?;
        }
        Ok(())
    }

    async fn registry_access(&self) -> Result<(RegistryAccess, PythonInstaller), StartFailure> {
        match self.dependency.ecosystem() {
            Ecosystem::Npm => registries::npm(&self.context).await.map(|registry| (registry, PythonInstaller::Pip)),
            Ecosystem::Python => registries::python(&self.context).await,
        }
    }

    fn environment(&self, registry: &RegistryAccess, path: &str) -> BTreeMap<String, String> {
        let temporary = self.prefix.join(TEMPORARY_DIRECTORY).display().to_string();
        let pairs = [
            ("HOME", temporary.as_str()),
            ("TMPDIR", &temporary),
            ("LANG", "C.UTF-8"),
            ("PATH", path),
            ("PIP_NO_INPUT", "1"),
            ("PIP_DISABLE_PIP_VERSION_CHECK", "1"),
            ("PIP_NO_CACHE_DIR", "1"),
            ("PIP_PROGRESS_BAR", "off"),
            ("PYTHONPATH", PIP_DIRECTORY),
            ("UV_NO_CACHE", "1"),
            // As pip does. Sandboxes see the packages read-only, so Python would compile them again in each process.
            ("UV_COMPILE_BYTECODE", "1"),
            ("npm_config_cache", &temporary),
            ("npm_config_audit", "false"),
            ("npm_config_fund", "false"),
            ("npm_config_progress", "false"),
            ("npm_config_update_notifier", "false"),
            ("npm_config_loglevel", "error"),
        ];
        let mut environment: BTreeMap<String, String> =
            pairs.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
        environment.extend(proxy_environment());
        environment.extend(registry.environment.clone());
        environment
    }

    /// Runs all steps. If all alternatives of a step fail, returns the failure of the first.
    async fn run_steps(
        &self,
        sandbox: &ServerSandbox,
        environment: &BTreeMap<String, String>,
        installer: &PythonInstaller,
    ) -> Result<(), StartFailure> {
        let steps = {
            let (dependency, prefix, installer) = (self.dependency.clone(), self.prefix.clone(), installer.clone());
            let planned = tokio::task::spawn_blocking(move || steps::plan(&dependency, &prefix, &installer)).await;
            planned.map_err(|error| StartFailure::transient(Phase::DepInstall, error.to_string()))?
        };
        for Step { alternatives, workdir } in steps {
            let mut failure = None;
            for argv in alternatives {
                match self.run_command(sandbox, environment, &argv, workdir.as_deref()).await {
                    Ok(()) => {
                        failure = None;
                        break;
                    }
                    Err(reason) => failure = failure.or(Some(reason)),
                }
            }
            if let Some(failure) = failure {
                return Err(failure);
            }
        }
        Ok(())
    }

    async fn run_command(
        &self,
        sandbox: &ServerSandbox,
        environment: &BTreeMap<String, String>,
        argv: &[String],
        workdir: Option<&Path>,
    ) -> Result<(), StartFailure> {
        let name = steps::display_name(&self.dependency);
        let program = argv.first().map_or("", |program| program.rsplit('/').next().unwrap_or(program));
        let command = Command {
            argv: argv.iter().map(Into::into).collect(),
            workdir: workdir.unwrap_or(Path::new(WORKSPACE)).to_owned(),
        };
        let process = sandbox.start(&command, environment)?;
        let mut handle = process.handle();
        drop(process.stdin);
        let started = tokio::time::timeout(START_TIMEOUT, handle.wait_until_started()).await;
        if let Ok(Err(reason)) = started {
            let message = format!("installing {name} failed: {program} cannot be started: {reason}");
            return Err(StartFailure::permanent(Phase::DepInstall, message));
        }
        let (stderr, _) = tokio::join!(read_head(process.stderr), read_head(process.stdout));
        match handle.wait_for_exit().await {
            ProcessExit::Exited(0) => Ok(()),
            exit => {
                let output: String = stderr.chars().take(MAX_OUTPUT_CHARS).collect();
                let message = format!("installing {name} failed: {program} {exit}: {output}");
                let failure = StartFailure {
                    is_transient: !is_permanent_error(&stderr),
                    ..StartFailure::permanent(Phase::DepInstall, message)
                };
                Err(failure)
            }
        }
    }
}

/// Whether the error output says that the registry has no such package, so that a retry does not help.
fn is_permanent_error(stderr: &str) -> bool {
    ["E404", "ETARGET", "EBADENGINE", "No matching distribution found", "Invalid requirement", "EINVALIDPACKAGENAME"]
        .iter()
        .any(|marker| stderr.contains(marker))
}
