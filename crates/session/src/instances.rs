//! Instances for sessions: created from a template and a flavor, or claimed from the pool.

mod credentials;
mod packages;
mod pool;

use std::collections::BTreeMap;

use ringfence_backend::protected_names::{self, ProtectedNames};
use ringfence_backend::{Backend, Instance, InstanceRequest, interpreter};
use ringfence_config::{SecretsRevision, SessionSettings};
use ringfence_core::{
    Failure, Flavor, Kind, Language, Network, Root, Spec, Template, mirror_environment, proxy_environment,
};
use ringfence_guest::sources;

use crate::kernel::{Kernel, Starting};
use crate::network::{InstanceNetwork, InstanceSecrets};

use credentials::NewCredentials;

pub(crate) use credentials::restore as restore_credentials;
pub(crate) use packages::ENVIRONMENT;
pub(crate) use pool::Pool;

/// An instance, with its interpreter if that is running.
pub(crate) struct PreparedInstance {
    pub(crate) instance: Instance,
    pub(crate) kernel: Option<Kernel>,
    /// An interpreter that was started and is not ready.
    pub(crate) starting: Option<Starting>,
    /// The protected names in its read-write volumes.
    pub(crate) names: ProtectedNames,
    pub(crate) network: InstanceNetwork,
    /// The revision of the stored secrets from which its credentials were made.
    pub(crate) secrets: SecretsRevision,
}

impl PreparedInstance {
    /// Whether neither the instance nor its interpreter has ended.
    pub(crate) fn is_alive(&self) -> bool {
        self.instance.is_alive() && self.kernel.as_ref().is_none_or(Kernel::is_quiet)
    }
}

/// The time at which the interpreter of a new instance will be needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InterpreterNeed {
    Immediately,
    MaybeLater,
    /// The instance is only a test whether instances can be created.
    Never,
}

/// Creates an instance. Its interpreter is started if it is needed immediately, but not waited for.
pub(crate) async fn create(
    backend: &Backend,
    template: &Template,
    flavor: &Flavor,
    settings: &SessionSettings,
    need: InterpreterNeed,
) -> Result<PreparedInstance, Failure> {
    let mut spec = instance_spec(template, flavor, settings);
    // Read first: if the secrets change in between, the instance counts as outdated.
    let secrets = settings.network.secrets_revision(&template.name);
    let credentials = NewCredentials::generate(template, settings).await?;
    if let Some(credentials) = &credentials {
        credentials.add_to(&mut spec);
    }
    spec.files.extend(sources::kernel_files(template.language));
    let volumes = protected_names::writable(&spec);
    let request = InstanceRequest {
        spec,
        warm: can_be_warm(template) && need != InterpreterNeed::Never,
        interpreter: (need == InterpreterNeed::Immediately).then(|| sources::start_command(template.language)),
    };
    let (created, names) = ProtectedNames::around(volumes, backend.create(request)).await?;
    if let Some(credentials) = &credentials {
        credentials.store(&created.instance).await;
    }
    let starting = created.interpreter.map(|started| Starting::new(template.language, started));
    let of_secrets =
        InstanceSecrets { credentials: credentials.map(NewCredentials::into_inner), ..InstanceSecrets::default() };
    let rules = settings.network.rules(&template.name);
    let network = InstanceNetwork::start(created.egress, rules, &settings.network, of_secrets).map_err(|error| {
        Failure::new(Kind::SandboxCreation, format!("cannot serve the network of a sandbox: {error}"))
    })?;
    Ok(PreparedInstance { instance: created.instance, kernel: None, starting, names, network, secrets })
}

/// The warm interpreter is the host's, with modules of the host. A separate root file system has its own interpreter, and
/// packages of the template may be other versions of the modules.
fn can_be_warm(template: &Template) -> bool {
    template.language == Language::Python && template.root == Root::Host && template.packages.is_empty()
}

/// The environment variables of processes in a session.
pub(crate) fn environment(
    template: &Template,
    flavor: &Flavor,
    settings: &SessionSettings,
) -> BTreeMap<String, String> {
    instance_spec(template, flavor, settings).environment
}

fn instance_spec(template: &Template, flavor: &Flavor, settings: &SessionSettings) -> Spec {
    let mut spec = template.spec(flavor, Vec::new());
    spec.command = None;
    spec.volumes.extend(settings.volumes.iter().cloned());
    spec.protected_paths.clone_from(&settings.protected_paths);
    spec.strict_volumes.clone_from(&settings.strict_volumes);
    spec.accept.clone_from(&settings.accept);
    spec.network = settings.network.network(&template.name);
    if spec.network != Network::None {
        // Variables of the template take precedence.
        let of_mirror = settings.network.packages.then(mirror_environment).into_iter().flatten();
        for (name, value) in proxy_environment().chain(of_mirror) {
            spec.environment.entry(name).or_insert(value);
        }
    }
    // A separate root file system has its own interpreter.
    if template.root == Root::Host
        && let Some(found) = interpreter::find(template.language.interpreter())
    {
        spec.volumes.push(found.volume);
        let path = spec.environment.entry("PATH".into()).or_default();
        *path = format!("{}:{path}", found.directory.display());
    }
    packages::add(&mut spec, template, settings);
    spec
}
