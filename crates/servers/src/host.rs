//! What starts of servers need, and the start itself.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ringfence_core::Weakness;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::bare::Bare;
use super::hosted::Hosted;
use super::phase::{Phase, StartFailure};
use super::progress::Progress;
use super::shared::Lodgings;
use ringfence_backend::Launchers;
use ringfence_config::Confinement;
use ringfence_config::{GuestWritable, ProtectedPaths};
use ringfence_core::default_accepted_weaknesses;
use ringfence_entries::{ServerEntry, StdioSettings, Transport};
use ringfence_store::Audit;

/// Timeout for the last check of protected names when servers end.
const LAST_REPORTS: Duration = Duration::from_secs(5);

/// How servers are hosted.
#[derive(Clone)]
pub struct HostSettings {
    /// ringfence itself: sandboxes are made by a helper process of it.
    pub program: PathBuf,
    /// Weaknesses of this machine that are accepted.
    pub accept: BTreeSet<Weakness>,
    /// Where installed packages are kept.
    pub cache: PathBuf,
    /// Hosts that installations may reach besides the registries that this machine's tools are set to, as
    /// `HOST[:PORT][+private]`.
    pub install_allow: Vec<String>,
    /// What servers may be shown of the host; without one, whatever their entries say.
    pub confinement: Option<Confinement>,
    /// What they are never shown.
    pub own: ProtectedPaths,
    /// The paths that guests may write; the volumes of servers are added before they start. The host neither executes
    /// these files nor reads settings from them.
    pub guest_writable: GuestWritable,
    /// The directory for the locks of strict volumes, if they are strict.
    pub strict_volumes: Option<PathBuf>,
    /// The audit log for protected names that servers write.
    pub audit: Audit,
    /// Of a run: what is installed from a project is not shared with other runs.
    pub tag: Option<String>,
}

impl HostSettings {
    pub fn new(program: PathBuf, cache: PathBuf) -> Self {
        Self {
            program,
            accept: default_accepted_weaknesses(),
            cache,
            install_allow: Vec::new(),
            confinement: None,
            own: ProtectedPaths::default(),
            guest_writable: GuestWritable::default(),
            strict_volumes: None,
            audit: Audit::disabled(),
            tag: None,
        }
    }
}

/// Starts servers. Cheap to clone; all clones are one.
#[derive(Clone)]
pub struct Host(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) settings: HostSettings,
    /// Without doors: whatever they made ends with this process.
    pub(crate) launchers: Launchers,
    pub(crate) lodgings: Lodgings,
    /// Installations, which outlast the starts that wait for them.
    pub(crate) tasks: TaskTracker,
    pub(crate) ending: CancellationToken,
    /// Tasks that check protected names; each ends with its server.
    pub(crate) reports: TaskTracker,
}

impl Host {
    pub fn new(settings: HostSettings) -> Self {
        let launchers = Launchers::new(settings.program.clone(), None, Duration::ZERO, None);
        let (tasks, ending, reports) = (TaskTracker::new(), CancellationToken::new(), TaskTracker::new());
        Self(Arc::new(Inner { settings, launchers, lodgings: Lodgings::default(), tasks, ending, reports }))
    }

    /// Starts a server whose texts are expanded already. Whoever calls sets the deadline; what a start that is given
    /// up has made goes with it, but for an installation, which the next start waits for.
    pub async fn start(&self, entry: &ServerEntry, progress: &Progress) -> Result<Hosted, StartFailure> {
        let Transport::Stdio(settings) = &entry.transport else {
            let message = format!("{} is reached by {}, and not started here", entry.name, entry.transport.mode());
            return Err(StartFailure::lasting(Phase::ProcessStart, message));
        };
        if self.0.ending.is_cancelled() {
            return Err(StartFailure::lasting(Phase::SessionCreate, "ringfence is shutting down"));
        }
        if settings.sandbox {
            return self.start_in_sandbox(entry, settings, progress).await;
        }
        if self.0.settings.confinement.is_some() {
            let message =
                format!("{} runs without a sandbox, where nothing keeps it within the allowed roots", entry.name);
            return Err(StartFailure::lasting(Phase::ProcessStart, message)
                .hint("leave `sandbox = false` out of the entry, or serve it without a scope"));
        }
        progress.say(Phase::ProcessStart, "starting on the host");
        let (bare, streams) = Bare::start(settings, &self.0.settings.guest_writable)?;
        Ok(Hosted::bare(bare, streams))
    }

    /// Ends what makes sandboxes, and with it every installation and every server that is left. Nothing can be
    /// started afterwards.
    pub async fn shut_down(&self) {
        self.0.ending.cancel();
        self.0.tasks.close();
        self.0.tasks.wait().await;
        self.0.launchers.end().await;
        self.0.reports.close();
        let _ = tokio::time::timeout(LAST_REPORTS, self.0.reports.wait()).await;
    }

    pub(crate) fn cache(&self) -> &Path {
        &self.0.settings.cache
    }

    async fn start_in_sandbox(
        &self,
        entry: &ServerEntry,
        settings: &StdioSettings,
        progress: &Progress,
    ) -> Result<Hosted, StartFailure> {
        super::start::start(self, entry, settings, progress).await
    }
}
