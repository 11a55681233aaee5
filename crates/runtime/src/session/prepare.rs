//! Makes the sandbox of a session, from its template and flavor to a running interpreter.

use std::path::PathBuf;

use ringfence_sandbox::{Spec, Volume};

use super::guest::Guest;
use super::kernel::Kernel;
use super::launchers::Launchers;
use super::{Failure, Kind, language};
use crate::flavor::Flavor;
use crate::interpreter;
use crate::template::Template;

/// A sandbox, with its interpreter where that runs already.
pub(super) struct Prepared {
    pub(super) guest: Guest,
    pub(super) kernel: Option<Kernel>,
}

impl Prepared {
    /// Whether it is still what it was when it was made.
    pub(super) fn is_alive(&self) -> bool {
        self.guest.is_alive() && self.kernel.as_ref().is_none_or(Kernel::is_quiet)
    }
}

/// Makes a sandbox whose interpreter has not been started.
pub(super) async fn sandbox(
    launchers: &Launchers,
    template: Template,
    flavor: Flavor,
    volumes: &[Volume],
) -> Result<Prepared, Failure> {
    let spec = specify(template, flavor, volumes);
    let environment = spec.environment.clone();
    let (launched, launcher) = launchers.launch(spec, template == Template::Python).await?;
    let guest = Guest::new(launched, launcher, environment)
        .map_err(|error| Failure::new(Kind::SandboxCreation, format!("the sandbox cannot be spoken to: {error}")))?;
    Ok(Prepared { guest, kernel: None })
}

/// The directory of an interpreter that lies outside of what every sandbox is shown.
pub(super) fn interpreter_directory(template: Template) -> Option<PathBuf> {
    interpreter::find(template.interpreter()).map(|found| found.directory)
}

fn specify(template: Template, flavor: Flavor, volumes: &[Volume]) -> Spec {
    let mut spec = template.spec(flavor, Vec::new());
    spec.command = None;
    spec.files = language::files(template);
    spec.volumes = volumes.to_vec();
    if let Some(found) = interpreter::find(template.interpreter()) {
        spec.volumes.push(found.volume);
        let path = spec.environment.entry("PATH".into()).or_default();
        *path = format!("{}:{path}", found.directory.display());
    }
    spec
}
