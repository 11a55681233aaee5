//! Makes the sandbox of a session, from its template and flavor to a running interpreter.

use std::collections::BTreeMap;
use std::sync::Arc;

use ringfence_core::{Root, Spec};

use super::kernel::{Kernel, Starting};
use ringfence_backend::Instance;
use ringfence_backend::Launchers;
use ringfence_backend::interpreter;
use ringfence_backend::protected_names;
use ringfence_backend::protected_names::ProtectedNames;
use ringfence_config::SessionSettings;
use ringfence_core::Flavor;
use ringfence_core::{Failure, Kind};
use ringfence_core::{Language, Template};
use ringfence_guest::sources;

/// A sandbox, with its interpreter where that runs already.
pub(crate) struct Prepared {
    pub(crate) guest: Instance,
    pub(crate) kernel: Option<Kernel>,
    /// Where it has been started and is not needed yet.
    pub(crate) starting: Option<Starting>,
    /// Of its read-write volumes.
    pub(crate) names: ProtectedNames,
}

impl Prepared {
    /// Whether it is still what it was when it was made.
    pub(crate) fn is_alive(&self) -> bool {
        self.guest.is_alive() && self.kernel.as_ref().is_none_or(Kernel::is_quiet)
    }
}

/// When the interpreter of a new sandbox will be needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Interpreter {
    NeededNow,
    MaybeLater,
    /// The sandbox is only a test whether sandboxes can be started.
    Never,
}

/// Makes a sandbox, in which the interpreter has at most been started.
pub(crate) async fn sandbox(
    launchers: &Launchers,
    template: &Template,
    flavor: &Flavor,
    settings: &SessionSettings,
    interpreter: Interpreter,
) -> Result<Prepared, Failure> {
    let mut spec = specify(template, flavor, settings);
    let environment = spec.environment.clone();
    // The warm interpreter is the host's; a root of its own brings its own.
    let warm =
        template.language == Language::Python && template.root == Root::Host && interpreter != Interpreter::Never;
    spec.files = sources::kernel_files(template.language);
    let mute = |error: std::io::Error| {
        Failure::new(Kind::SandboxCreation, format!("the sandbox cannot be spoken to: {error}"))
    };
    let (mut starting, opening) = match interpreter {
        Interpreter::MaybeLater | Interpreter::Never => (None, None),
        Interpreter::NeededNow => {
            let started = Starting::with_sandbox(template.language, environment.clone()).map_err(mute)?;
            (Some(started.0), Some(Arc::new(started.1)))
        }
    };
    let made = ProtectedNames::around(protected_names::writable(&spec), launchers.launch(spec, warm, opening));
    let ((launched, launcher), names) = made.await?;
    let is_forked = launched.is_warm;
    let mut guest = Instance::new(launched, launcher, environment).map_err(mute)?;
    if let Some(starting) = &mut starting {
        guest.count_first();
        if !is_forked {
            starting.teach();
        }
    }
    Ok(Prepared { guest, kernel: None, starting, names })
}

/// The variables that processes of a session have.
pub(crate) fn environment(
    template: &Template,
    flavor: &Flavor,
    settings: &SessionSettings,
) -> BTreeMap<String, String> {
    specify(template, flavor, settings).environment
}

fn specify(template: &Template, flavor: &Flavor, settings: &SessionSettings) -> Spec {
    let mut spec = template.spec(flavor, Vec::new());
    spec.command = None;
    spec.volumes.clone_from(&settings.volumes);
    spec.protected_paths.clone_from(&settings.protected_paths);
    spec.strict_volumes.clone_from(&settings.strict_volumes);
    spec.accept.clone_from(&settings.accept);
    // A root of its own brings its own interpreter.
    if template.root == Root::Host
        && let Some(found) = interpreter::find(template.language.interpreter())
    {
        spec.volumes.push(found.volume);
        let path = spec.environment.entry("PATH".into()).or_default();
        *path = format!("{}:{path}", found.directory.display());
    }
    spec
}
