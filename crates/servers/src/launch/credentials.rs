//! The credentials of a server's sandbox: the placeholders of its secrets, and the certificate authority that it trusts.

use std::collections::BTreeMap;
use std::sync::Arc;

use ringfence_core::Spec;
use ringfence_egress::{GuestFiles, Rule, SandboxCredentials};
use ringfence_entries::SandboxSettings;

use crate::context::Context;
use crate::phase::{Phase, StartFailure};

/// The credentials of a sandbox that does not exist yet.
#[derive(Default)]
pub(super) struct NewCredentials(Option<(Arc<SandboxCredentials>, GuestFiles)>);

impl NewCredentials {
    /// Makes the credentials that a server needs: none, without secrets and without rules that have methods or paths.
    pub(super) async fn generate(
        context: &Context,
        settings: &SandboxSettings,
        rules: &[Rule],
    ) -> Result<Self, StartFailure> {
        let refuse = |problem: String| StartFailure::permanent(Phase::SessionCreate, problem);
        let secrets = context.settings.secrets.select(&settings.secrets).map_err(|error| {
            if let Some(cause) = std::error::Error::source(&error) {
                // Clients may see the message of the failure, so it has no details.
                tracing::error!("{cause}");
            }
            refuse(error.to_string()).hint(error.hint())
        })?;
        if secrets.is_empty() && !rules.iter().any(|rule| rule.requests().is_limited()) {
            return Ok(Self::default());
        }
        if settings.shared {
            let problem = "a server in a shared sandbox has no secrets, and no rules with methods or paths";
            return Err(refuse(problem.to_owned()).hint("remove `shared` from the box of the server"));
        }
        let generate = move || {
            let credentials = SandboxCredentials::generate(&secrets).map_err(|error| error.to_string())?;
            let files = credentials.write_guest_files(&std::env::temp_dir()).map_err(|error| error.to_string())?;
            Ok((Arc::new(credentials), files))
        };
        let generated = tokio::task::spawn_blocking(generate).await.map_err(|error| refuse(error.to_string()))?;
        generated.map(|generated| Self(Some(generated))).map_err(|error: String| {
            StartFailure::transient(Phase::SessionCreate, format!("its secrets cannot be used: {error}"))
        })
    }

    /// Adds the files of the guest.
    pub(super) fn add_to(&self, spec: &mut Spec) {
        let volumes = self.0.as_ref().map(|(_, files)| files.volumes(&spec.root));
        spec.volumes.extend(volumes.into_iter().flatten());
    }

    /// Returns the variables of the guest.
    pub(super) fn environment(&self) -> BTreeMap<String, String> {
        self.0.as_ref().map(|(credentials, _)| credentials.environment()).unwrap_or_default()
    }

    /// Returns the credentials for the egress. The files must exist until the sandbox has mounted them.
    pub(super) fn for_egress(&self) -> Option<Arc<SandboxCredentials>> {
        self.0.as_ref().map(|(credentials, _)| Arc::clone(credentials))
    }
}
