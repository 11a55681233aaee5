//! Installs the Python packages of templates, in the same way as those of hosted servers. All sessions of all ringfence
//! servers of a user share one installation.
//!
//! A build is the task that installs the packages of one template. All callers wait for the same build, and it
//! continues if they give up.

use std::sync::Arc;
use std::time::Instant;

use ringfence_core::{Failure, Kind, Template, TemplatePackages, Volume};
use ringfence_entries::SandboxSettings;
use tokio::sync::watch;

use crate::context::Context;
use crate::install;
use crate::phase::{Phase, Progress, StartFailure};
use crate::plan::Dependency;
use crate::template_builds::{Build, Finished};

/// Returns the volume with the packages of a template, and installs them first if needed.
pub(crate) async fn build(
    context: &Arc<Context>,
    template: &Template,
    progress: &Progress,
) -> Result<Volume, StartFailure> {
    let mut build = running_build(context, template, progress);
    let finished = build.wait_for(Option::is_some).await.ok().and_then(|finished| finished.clone());
    let cancelled = || Err(StartFailure::transient(Phase::DepInstall, "ringfence is shutting down"));
    finished.map_or_else(cancelled, |finished| finished.result)
}

/// Returns the build of a template, and starts it if it is not running and has no current result.
fn running_build(context: &Arc<Context>, template: &Template, progress: &Progress) -> Build {
    let mut builds = context.template_builds.lock();
    if let Some(build) = builds.get(&template.packages) {
        // A build whose task was cancelled has no sender.
        let is_current = match &*build.borrow() {
            Some(finished) => finished.is_current(),
            None => build.has_changed().is_ok(),
        };
        if is_current {
            return build.clone();
        }
    }
    let (sender, build) = watch::channel(None);
    builds.insert(template.packages.clone(), build.clone());
    let (owner, context, progress) = (Arc::clone(context), Arc::clone(context), progress.clone());
    let (name, dependency) = (Arc::clone(&template.name), dependency(template));
    owner.installations.spawn(async move {
        let sandbox = SandboxSettings::default();
        let installed = install::ensure_installed(&context, &dependency, &sandbox, None, &progress);
        let Some(result) = context.shutdown.run_until_cancelled(installed).await else { return };
        if let Err(failure) = &result {
            tracing::warn!("template {name} cannot be built: {failure}");
        }
        let result = result.map(|installed| installed.volume());
        sender.send_replace(Some(Finished { result, at: Instant::now() }));
    });
    build
}

/// Returns whether the packages of a template are installed.
pub(crate) async fn is_built(context: &Arc<Context>, template: &Template) -> Result<bool, StartFailure> {
    let found = install::find_installed(context, &dependency(template), &SandboxSettings::default()).await?;
    Ok(found.is_some())
}

/// Returns the function with which sessions get the packages of their template.
pub(crate) fn for_sessions(context: &Arc<Context>) -> TemplatePackages {
    let context = Arc::clone(context);
    TemplatePackages::new(move |template| {
        let (context, template) = (Arc::clone(&context), template.clone());
        Box::pin(async move {
            let built = build(&context, &template, &Progress::default()).await;
            built.map_err(|failure| failure_of_session(&template, failure))
        })
    })
}

fn failure_of_session(template: &Template, failure: StartFailure) -> Failure {
    let kind = if failure.is_transient { Kind::Busy } else { Kind::Configuration };
    let message = format!("the packages of template {} cannot be installed: {failure}", template.name);
    let hint = format!("`ringfence template build {}` tries it again on this host", template.name);
    failure.hints.into_iter().chain([hint]).fold(Failure::new(kind, message), Failure::hint)
}

fn dependency(template: &Template) -> Dependency {
    Dependency::PipPackages { requirements: template.packages.clone() }
}
