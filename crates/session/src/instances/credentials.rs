//! The credentials of an instance: the placeholders of its secrets, and the certificate authority that it trusts.

use std::sync::Arc;

use ringfence_backend::{Instance, Orphan};
use ringfence_config::SessionSettings;
use ringfence_core::{Failure, Kind, Network, Spec, Template};
use ringfence_egress::{GuestFiles, RestoredCredentials, SandboxCredentials};

use crate::network::InstanceSecrets;

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

    /// Stores the credentials for the next server, without the values of secrets. If that fails, the instance works, but
    /// loses its credentials at the end of this server.
    pub(super) async fn store(&self, instance: &Instance) {
        let stored = match instance.store_credentials(&self.credentials.record()) {
            Ok(pending) => pending.confirm().await,
            Err(error) => Err(error),
        };
        if let Err(error) = stored {
            tracing::warn!("secrets of a session will not survive the end of this server: {error}");
        }
    }

    /// Returns the credentials for the egress, once the instance has mounted the files.
    pub(super) fn into_inner(self) -> Arc<SandboxCredentials> {
        self.credentials
    }
}

/// Restores the credentials of an instance of an earlier server, with the current values of its secrets. Hosts whose
/// requests can no longer be checked are refused: without a record those of all secrets, otherwise those of removed ones.
pub(crate) async fn restore(orphan: &Orphan, template: &Template, settings: &SessionSettings) -> InstanceSecrets {
    let secrets = settings.network.secrets(&template.name).unwrap_or_default();
    let all_hosts = settings.network.secret_hosts(&template.name);
    let restored = match orphan.credentials().await {
        Ok(None) => return InstanceSecrets { credentials: None, lost_hosts: all_hosts },
        Ok(Some(record)) => {
            let restore = move || SandboxCredentials::restore(&record, &secrets).map_err(|error| error.to_string());
            tokio::task::spawn_blocking(restore).await.unwrap_or_else(|error| Err(error.to_string()))
        }
        Err(error) => Err(error),
    };
    match restored {
        Ok(RestoredCredentials { credentials, lost_hosts }) => {
            InstanceSecrets { credentials: Some(Arc::new(credentials)), lost_hosts }
        }
        Err(error) => {
            tracing::warn!("a session has lost its secrets: {error}");
            InstanceSecrets { credentials: None, lost_hosts: all_hosts }
        }
    }
}
