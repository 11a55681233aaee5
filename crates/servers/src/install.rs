//! Installs what a server needs, in a sandbox of its own that may reach the registries and nothing else.
//!
//! An installation goes on when the start that asked for it is given up, within a deadline of its own: the next start
//! waits for it, instead of beginning anew and being given up at the same point again.

mod steps;
mod watch;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ringfence_core::{Command, Network, WORKSPACE};
use tokio::io::{AsyncRead, AsyncReadExt as _};

use super::host::Host;
use super::interpreters;
use super::needs::Need;
use super::packages::{Packages, TEMPORARY};
use super::phase::{Phase, StartFailure};
use super::progress::Progress;
use super::registries::{self, Installer, Kind, PIP, Registry};
use super::rewrite::Moved;
use super::stage::{self, Bounds, Project};
use super::start::{add_interpreters, rules, specify};
use super::tail::Tail;
use crate::server_sandbox::{Cell, Ended};
use ringfence_backend::interpreter;
use ringfence_config::GuestWritable;
use ringfence_core::proxy_environment;
use ringfence_entries::SandboxSettings;
use steps::Step;

/// Mounted for an installation if they are outside of the paths that every sandbox sees.
const INTERPRETERS: [&str; 4] = ["python3", "node", "npm", "uv"];

/// What is told of a failed installer's complaints, in characters.
const TOLD: usize = 500;

/// For an installer to say whether it could be started.
const PATIENCE: Duration = Duration::from_secs(30);

/// For a whole installation.
const DEADLINE: Duration = Duration::from_secs(15 * 60);

/// A need that is met.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Installed {
    pub(crate) need: Need,
    pub(crate) packages: Packages,
}

impl Installed {
    /// Where its programs are inside.
    pub(crate) fn programs(&self) -> PathBuf {
        match self.need {
            Need::Npm { .. } | Need::NodeProject { .. } => self.packages.guest().join("node_modules/.bin"),
            Need::Pip { .. } | Need::PythonProject { .. } => self.packages.guest().join("bin"),
        }
    }
}

/// Meets a need: at once where it was met before.
pub(crate) async fn ensure(
    host: &Host,
    need: &Need,
    walls: &SandboxSettings,
    project: Option<&Moved>,
    progress: &Progress,
) -> Result<Installed, StartFailure> {
    let failed = |error: String| StartFailure::transient(Phase::DepInstall, error);
    let interpreter = interpreter_for(need, walls, &host.0.settings.guest_writable).await?;
    let placed = {
        let (cache, need, run) = (host.cache().to_owned(), need.clone(), host.0.settings.tag.clone());
        tokio::task::spawn_blocking(move || Packages::place(&cache, &need, &interpreter, run.as_deref())).await
    };
    let packages = placed
        .map_err(|error| failed(error.to_string()))?
        .map_err(|error| failed(format!("the manifests of the project cannot be read: {error}")))?;
    let installed = Installed { need: need.clone(), packages };
    if installed.packages.is_ready() {
        return Ok(installed);
    }
    if !walls.network {
        let message =
            format!("{} is not installed, and the entry's box has no network to install it", steps::name(need));
        return Err(StartFailure::lasting(Phase::DepInstall, message)
            .hint("set `network = true` in the box; it is for installations only"));
    }
    let making = installed.packages.lock(progress).await.map_err(|error| unusable(host, &error))?;
    if installed.packages.is_ready() {
        return Ok(installed);
    }
    progress.say(Phase::DepInstall, &format!("installing {}", steps::name(need)));
    let installation = Installation {
        host: host.clone(),
        need: need.clone(),
        image: walls.image.clone(),
        project: project.cloned(),
        prefix: installed.packages.guest(),
    };
    let work = async move {
        let volume = making.begin().map_err(|error| unusable(&installation.host, &error))?;
        installation.run(volume, &making.new_directory()).await?;
        making.complete().map_err(|error| unusable(&installation.host, &error))
    };
    let bounded = async move {
        let too_slow = || StartFailure::transient(Phase::DepInstall, "the installation did not end within 15 minutes");
        tokio::time::timeout(DEADLINE, work).await.unwrap_or_else(|_| Err(too_slow()))
    };
    let ended = || Err(StartFailure::transient(Phase::DepInstall, "ringfence is shutting down"));
    let ending = host.0.ending.clone();
    let task = host.0.tasks.spawn(async move { ending.run_until_cancelled(bounded).await.unwrap_or_else(ended) });
    task.await.map_err(|error| failed(error.to_string()))??;
    Ok(installed)
}

fn unusable(host: &Host, error: &std::io::Error) -> StartFailure {
    let message = format!("the package cache {} cannot be used: {error}", host.cache().display());
    StartFailure::transient(Phase::DepInstall, message)
}

/// The interpreter that packages are for, with its version.
async fn interpreter_for(
    need: &Need,
    walls: &SandboxSettings,
    writable: &GuestWritable,
) -> Result<String, StartFailure> {
    if let Some(image) = &walls.image {
        return Ok(image.display().to_string());
    }
    let name = match need.kind() {
        Kind::Npm => "node",
        Kind::Python => "python3",
    };
    interpreters::version_of(name, writable).await
}

struct Installation {
    host: Host,
    need: Need,
    image: Option<PathBuf>,
    project: Option<Moved>,
    /// Where it goes, inside.
    prefix: PathBuf,
}

impl Installation {
    async fn run(&self, volume: ringfence_core::Volume, new: &Path) -> Result<(), StartFailure> {
        let (registry, installer) = self.registry().await?;
        let refusals: Arc<Tail> = Arc::default();
        let walls = SandboxSettings {
            image: self.image.clone(),
            cpus: Some(2.0),
            memory_mb: Some(2048),
            pids_limit: Some(512),
            ..SandboxSettings::default()
        };
        let mut spec = specify(&self.host, &walls);
        spec.network = Network::Proxy;
        spec.volumes.push(volume);
        spec.volumes.extend(registry.volumes.iter().cloned());
        spec.files.extend(registry.files.clone());
        self.check_interpreters()?;
        add_interpreters(&mut spec, &INTERPRETERS);
        let path = spec.environment.get("PATH").cloned().unwrap_or_default();
        let allow: Vec<String> = registry.rules.iter().chain(&self.host.0.settings.install_allow).cloned().collect();
        let bounds = Bounds::of(&spec.workspace);
        let rules = rules(&allow)?;
        let cell = Cell::make(&self.host.0.launchers, spec, rules, Some(Arc::clone(&refusals))).await?;
        if let (Some(project), true) = (&self.project, self.needs_project()) {
            let Moved { host, guest, within } = project.clone();
            let project = Project { host: Some(host), within, guest, link: None };
            stage::copy_in(&cell, &project, bounds).await?;
        }
        let environment = self.environment(&registry, &path);
        let work = self.steps(&cell, &environment, &installer);
        let done = tokio::select! {
            done = work => done,
            too_large = watch::outgrows(new) => Err(too_large),
        };
        // Nothing may write any more when it gets its name.
        cell.end().await;
        done.map_err(|failure| {
            let refused: Vec<String> = refusals.lines_so_far().into_iter().take(3).collect();
            if refused.is_empty() {
                return failure;
            }
            failure.hint(format!(
                "it may not reach every host ({}); add what it needs to `hosting.install_allow`",
                refused.join("; ")
            ))
        })
    }

    fn needs_project(&self) -> bool {
        matches!(self.need, Need::PythonProject { .. } | Need::NodeProject { .. })
    }

    /// Refuses interpreters that guests could have written, because other servers run the packages that they install.
    fn check_interpreters(&self) -> Result<(), StartFailure> {
        // An image brings its own.
        let names = INTERPRETERS.iter().filter(|_| self.image.is_none());
        for found in names.filter_map(|name| interpreter::find(name)) {
            let shown = &found.volume.host;
            let checked = self.host.0.settings.guest_writable.check_tree(shown);
            checked.map_err(|error| interpreters::not_executed(shown, &error))?;
        }
        Ok(())
    }

    async fn registry(&self) -> Result<(Registry, Installer), StartFailure> {
        match self.need.kind() {
            Kind::Npm => registries::npm(&self.host).await.map(|registry| (registry, Installer::Pip)),
            Kind::Python => registries::python(&self.host).await,
        }
    }

    fn environment(&self, registry: &Registry, path: &str) -> BTreeMap<String, String> {
        let temporary = self.prefix.join(TEMPORARY).display().to_string();
        let pairs = [
            ("HOME", temporary.as_str()),
            ("TMPDIR", &temporary),
            ("LANG", "C.UTF-8"),
            ("PATH", path),
            ("PIP_NO_INPUT", "1"),
            ("PIP_DISABLE_PIP_VERSION_CHECK", "1"),
            ("PIP_NO_CACHE_DIR", "1"),
            ("PIP_PROGRESS_BAR", "off"),
            ("PYTHONPATH", PIP),
            ("UV_NO_CACHE", "1"),
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

    /// Runs each step; of one that may be done in several ways, the first that succeeds counts.
    async fn steps(
        &self,
        cell: &Cell,
        environment: &BTreeMap<String, String>,
        installer: &Installer,
    ) -> Result<(), StartFailure> {
        let steps = {
            let (need, prefix, installer) = (self.need.clone(), self.prefix.clone(), installer.clone());
            let planned = tokio::task::spawn_blocking(move || steps::of(&need, &prefix, &installer)).await;
            planned.map_err(|error| StartFailure::transient(Phase::DepInstall, error.to_string()))?
        };
        for Step { ways, workdir } in steps {
            let mut failure = None;
            for argv in ways {
                match self.step(cell, environment, &argv, workdir.as_deref()).await {
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

    async fn step(
        &self,
        cell: &Cell,
        environment: &BTreeMap<String, String>,
        argv: &[String],
        workdir: Option<&Path>,
    ) -> Result<(), StartFailure> {
        let name = steps::name(&self.need);
        let program = argv.first().map_or("", |program| program.rsplit('/').next().unwrap_or(program));
        let command = Command {
            argv: argv.iter().map(Into::into).collect(),
            workdir: workdir.unwrap_or(Path::new(WORKSPACE)).to_owned(),
        };
        let inmate = cell.start(&command, environment)?;
        let mut handle = inmate.handle();
        drop(inmate.stdin);
        let started = tokio::time::timeout(PATIENCE, handle.started()).await;
        if let Ok(Err(why)) = started {
            let message = format!("installing {name} failed: {program} cannot be started: {why}");
            return Err(StartFailure::lasting(Phase::DepInstall, message));
        }
        let (complaints, _) = tokio::join!(head(inmate.stderr), head(inmate.stdout));
        match handle.ended().await {
            Ended::Exited(0) => Ok(()),
            how => {
                let told: String = complaints.chars().take(TOLD).collect();
                let message = format!("installing {name} failed: {program} {how}: {told}");
                let failure = StartFailure {
                    is_transient: !is_final(&complaints),
                    ..StartFailure::lasting(Phase::DepInstall, message)
                };
                Err(failure)
            }
        }
    }
}

/// Whether a registry has said that there is no such package: asking again will not help.
fn is_final(complaints: &str) -> bool {
    ["E404", "ETARGET", "EBADENGINE", "No matching distribution found", "Invalid requirement", "EINVALIDPACKAGENAME"]
        .iter()
        .any(|sign| complaints.contains(sign))
}

/// The beginning of what is written; the rest is read and dropped.
pub(crate) async fn head(mut from: impl AsyncRead + Unpin) -> String {
    const KEPT: usize = 64 << 10;
    let mut kept = Vec::new();
    let mut buffer = vec![0; 16 << 10];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        let room = KEPT.saturating_sub(kept.len());
        kept.extend_from_slice(&buffer[..length.min(room)]);
        tokio::task::yield_now().await;
    }
    String::from_utf8_lossy(&kept).trim().to_owned()
}
