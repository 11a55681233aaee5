//! Installs the dependencies of a server, in a separate sandbox that may connect only to the package registries.
//!
//! An installation has a separate deadline and continues when the start that requested it is cancelled. The next start
//! waits for it, instead of starting over and being cancelled at the same point again.

mod installation;
mod interpreters;
mod package_cache;
mod programs;
mod registries;
mod size_limit;
mod steps;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ringfence_core::Volume;

use crate::context::Context;
use crate::phase::{Phase, Progress, StartFailure};
use crate::plan::{Dependency, Ecosystem, MappedDirectory};
use installation::Installation;
use package_cache::CacheEntry;
use ringfence_config::GuestWritable;
use ringfence_entries::SandboxSettings;

pub(crate) use programs::{check_program_exists, default_npm_program};
pub(crate) use registries::check_settings as check_registry_settings;
pub(crate) use registries::package_registries;

/// Timeout for a whole installation.
const INSTALLATION_TIMEOUT: Duration = Duration::from_mins(15);

/// An installed dependency.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Installed {
    pub(crate) dependency: Dependency,
    entry: CacheEntry,
}

impl Installed {
    /// Returns the directory of its programs inside the sandbox.
    pub(crate) fn programs_directory(&self) -> PathBuf {
        match self.dependency.ecosystem() {
            Ecosystem::Npm => self.guest().join("node_modules/.bin"),
            Ecosystem::Python => self.guest().join("bin"),
        }
    }

    /// Returns its directory on the host.
    pub(crate) fn host(&self) -> PathBuf {
        self.entry.host()
    }

    /// Returns its directory inside the sandbox.
    pub(crate) fn guest(&self) -> PathBuf {
        self.entry.guest()
    }

    pub(crate) fn volume(&self) -> Volume {
        self.entry.volume()
    }
}

/// Returns a read-only volume of the whole package cache, for a sandbox whose servers come and go.
pub(crate) fn whole_cache_volume(cache: &Path) -> std::io::Result<Volume> {
    CacheEntry::whole_cache_volume(cache)
}

/// Returns a dependency from the cache if it is installed.
pub(crate) async fn find_installed(
    context: &Context,
    dependency: &Dependency,
    sandbox: &SandboxSettings,
) -> Result<Option<Installed>, StartFailure> {
    let installed = find(context, dependency, sandbox).await?;
    Ok(Some(installed).filter(|installed| installed.entry.is_complete()))
}

/// Returns a dependency, which may not be installed yet.
async fn find(
    context: &Context,
    dependency: &Dependency,
    sandbox: &SandboxSettings,
) -> Result<Installed, StartFailure> {
    let failed = |error: String| StartFailure::transient(Phase::DepInstall, error);
    let interpreter = interpreter_for(dependency, sandbox, &context.settings.guest_writable).await?;
    let found = {
        let (cache, dependency) = (context.settings.cache.clone(), dependency.clone());
        let scope_tag = context.settings.scope_tag.clone();
        let find = move || CacheEntry::find(&cache, &dependency, &interpreter, scope_tag.as_deref());
        tokio::task::spawn_blocking(find).await
    };
    let entry = found
        .map_err(|error| failed(error.to_string()))?
        .map_err(|error| failed(format!("the manifests of the project cannot be read: {error}")))?;
    Ok(Installed { dependency: dependency.clone(), entry })
}

/// Returns a dependency from the cache, and installs it first if needed.
pub(crate) async fn ensure_installed(
    context: &Arc<Context>,
    dependency: &Dependency,
    sandbox: &SandboxSettings,
    project: Option<&MappedDirectory>,
    progress: &Progress,
) -> Result<Installed, StartFailure> {
    let failed = |error: String| StartFailure::transient(Phase::DepInstall, error);
    let installed = find(context, dependency, sandbox).await?;
    if installed.entry.is_complete() {
        return Ok(installed);
    }
    let name = steps::display_name(dependency);
    if !sandbox.network {
        let message = format!("{name} is not installed, and the entry's box has `network = false`");
        return Err(StartFailure::permanent(Phase::DepInstall, message)
            .hint("set `network = true` in the box; only installations use it"));
    }
    let cache = context.settings.cache.clone();
    let pending = installed.entry.lock(progress).await.map_err(|error| cache_failure(&cache, &error))?;
    // Another start may have installed it while this one waited for the lock.
    if installed.entry.is_complete() {
        return Ok(installed);
    }
    progress.report(Phase::DepInstall, &format!("installing {name}"));
    let installation = Installation {
        context: Arc::clone(context),
        dependency: dependency.clone(),
        image: sandbox.image.clone(),
        project: project.cloned(),
        prefix: installed.guest(),
    };
    let work = async move {
        let volume = pending.create().map_err(|error| cache_failure(&cache, &error))?;
        installation.run(volume, &pending.directory()).await?;
        pending.complete().map_err(|error| cache_failure(&cache, &error))
    };
    let with_timeout = async move {
        let timed_out =
            || StartFailure::transient(Phase::DepInstall, "the installation did not finish within 15 minutes");
        tokio::time::timeout(INSTALLATION_TIMEOUT, work).await.unwrap_or_else(|_| Err(timed_out()))
    };
    let cancelled = || Err(StartFailure::transient(Phase::DepInstall, "ringfence is shutting down"));
    let shutdown = context.shutdown.clone();
    let task = context
        .installations
        .spawn(async move { shutdown.run_until_cancelled(with_timeout).await.unwrap_or_else(cancelled) });
    task.await.map_err(|error| failed(error.to_string()))??;
    Ok(installed)
}

fn cache_failure(cache: &Path, error: &std::io::Error) -> StartFailure {
    let message = format!("the package cache {} cannot be used: {error}", cache.display());
    StartFailure::transient(Phase::DepInstall, message)
}

/// Returns the path and version of the interpreter that packages are installed for, or the path of the image.
async fn interpreter_for(
    dependency: &Dependency,
    sandbox: &SandboxSettings,
    writable: &GuestWritable,
) -> Result<String, StartFailure> {
    if let Some(image) = &sandbox.image {
        return Ok(image.display().to_string());
    }
    let name = match dependency.ecosystem() {
        Ecosystem::Npm => "node",
        Ecosystem::Python => "python3",
    };
    interpreters::path_and_version(name, writable).await
}
