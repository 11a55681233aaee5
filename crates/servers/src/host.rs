//! Starts hosted servers, in a sandbox or, if their entry says so, on the host.

use std::sync::Arc;
use std::time::Duration;

use ringfence_config::PackageSettings;
use ringfence_core::{Template, TemplatePackages, Volume};
use ringfence_egress::RegistrySource;
use ringfence_entries::{ServerEntry, Transport};

use crate::context::{Context, HostSettings};
use crate::host_process::HostProcess;
use crate::hosted::HostedServer;
use crate::install;
use crate::launch;
use crate::phase::{Phase, Progress, StartFailure};
use crate::template_packages;

/// Timeout for the last check of protected names at shutdown.
const LAST_REPORTS_TIMEOUT: Duration = Duration::from_secs(5);

/// Starts servers. Clones share one state.
#[derive(Clone)]
pub struct Host(Arc<Context>);

impl Host {
    pub fn new(settings: HostSettings) -> Self {
        Self(Arc::new(Context::new(settings)))
    }

    /// Starts a server. The variables in its entry must be expanded already.
    ///
    /// The caller sets the deadline. Dropping the future removes everything that the start has made, except for a
    /// running installation, which the next start waits for.
    pub async fn start(&self, entry: &ServerEntry, progress: &Progress) -> Result<HostedServer, StartFailure> {
        let Transport::Stdio(settings) = &entry.transport else {
            let mode = entry.transport.mode();
            let message = format!("{} has the mode {mode}, which has no command to start", entry.name);
            return Err(StartFailure::permanent(Phase::ProcessStart, message));
        };
        if self.0.shutdown.is_cancelled() {
            return Err(StartFailure::permanent(Phase::SessionCreate, "ringfence is shutting down"));
        }
        if settings.sandbox {
            return launch::start_in_sandbox(&self.0, entry, settings, progress).await;
        }
        if self.0.settings.confinement.is_some() {
            let message = format!(
                "{} has `sandbox = false`, and without a sandbox it cannot be confined to the allowed roots",
                entry.name
            );
            return Err(StartFailure::permanent(Phase::ProcessStart, message)
                .hint("remove `sandbox = false` from the entry, or run ringfence without a scope"));
        }
        progress.report(Phase::ProcessStart, "starting on the host");
        let (process, streams) = HostProcess::start(settings, &self.0.settings.guest_writable)?;
        Ok(HostedServer::on_host(process, streams))
    }

    /// Returns the registries that fill the package mirror: those of the settings, else those that pip and npm of this
    /// host use. They are determined when a package is first requested.
    pub fn package_registries(&self, settings: &PackageSettings) -> RegistrySource {
        install::package_registries(&self.0, settings)
    }

    /// Returns the packages of a template as a read-only volume, and installs them first if needed. The installation
    /// continues if the future is dropped. A failure is returned again for a while without another attempt.
    pub async fn build_template(&self, template: &Template, progress: &Progress) -> Result<Volume, StartFailure> {
        template_packages::build(&self.0, template, progress).await
    }

    /// Whether the packages of a template are installed.
    pub async fn is_template_built(&self, template: &Template) -> Result<bool, StartFailure> {
        template_packages::is_built(&self.0, template).await
    }

    /// Returns what sessions need to request the packages of templates.
    pub fn template_packages(&self) -> TemplatePackages {
        template_packages::for_sessions(&self.0)
    }

    /// Ends the backend, and with it all remaining installations and servers. Later starts fail.
    pub async fn shut_down(&self) {
        self.0.shutdown.cancel();
        self.0.installations.close();
        self.0.installations.wait().await;
        self.0.backend.end().await;
        self.0.protected_name_reports.close();
        let _ = tokio::time::timeout(LAST_REPORTS_TIMEOUT, self.0.protected_name_reports.wait()).await;
    }
}
