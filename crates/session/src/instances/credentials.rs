//! The credentials of an instance: the placeholders of its secrets, and the certificate authority that it trusts.

use std::sync::Arc;

use ringfence_config::SessionSettings;
use ringfence_core::{Failure, Kind, Network, Spec, Template};
use ringfence_egress::{GuestFiles, Rule, SandboxCredentials};

/// The credentials of an instance that does not exist yet.
pub(super) struct NewCredentials {
    credentials: Arc<SandboxCredentials>,
    files: GuestFiles,
}

impl NewCredentials {
    /// Makes the credentials of an instance. `None` if it needs none: without secrets and without rules that have
    /// methods or paths, all its connections stay end-to-end encrypted.
    pub(super) async fn generate(template: &Template, settings: &SessionSettings) -> Result<Option<Self>, Failure> {
        let network = &settings.network;
        let failed =
            |problem: String| Failure::new(Kind::SandboxCreation, format!("cannot use the secrets: {problem}"));
        let secrets = network.secrets(&template.name).map_err(|error| {
            if let Some(cause) = std::error::Error::source(&error) {
                // The message for the client has no details.
                tracing::error!("{cause}");
            }
            failed(error.to_string())
        })?;
        let is_limited = network.rules(&template.name).iter().any(|rule| rule.requests().is_limited());
        if network.network(&template.name) == Network::None || secrets.is_empty() && !is_limited {
            return Ok(None);
        }
        let generate = move || {
            let credentials = SandboxCredentials::generate(&secrets).map_err(|error| error.to_string())?;
            let files = credentials.write_guest_files(&std::env::temp_dir()).map_err(|error| error.to_string())?;
            Ok(Self { credentials: Arc::new(credentials), files })
        };
        let generated = tokio::task::spawn_blocking(generate).await.map_err(|error| failed(error.to_string()))?;
        generated.map(Some).map_err(failed)
    }

    /// Adds the variables and the files of the guest.
    pub(super) fn add_to(&self, spec: &mut Spec) {
        spec.volumes.extend(self.files.volumes(&spec.root));
        spec.environment.extend(self.credentials.environment());
    }

    /// Returns the credentials for the egress, once the instance has mounted the files.
    pub(super) fn into_inner(self) -> Arc<SandboxCredentials> {
        self.credentials
    }
}

/// Returns the hosts whose secrets an adopted instance had. Its placeholders ended with the server that made them.
pub(crate) fn lost_secret_hosts(template: &Template, settings: &SessionSettings) -> Vec<Rule> {
    settings.network.secret_hosts(&template.name)
}
