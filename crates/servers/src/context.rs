//! The settings and state that all starts of servers have in common.

use std::collections::BTreeSet;
use std::path::PathBuf;

use ringfence_core::Weakness;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::server_sandbox::shared::SharedSandboxes;
use crate::template_builds::TemplateBuilds;
use ringfence_backend::{Backend, BackendConfig};
use ringfence_config::{Confinement, Secrets};
use ringfence_config::{GuestWritable, ProtectedPaths};
use ringfence_core::default_accepted_weaknesses;
use ringfence_store::Audit;

/// Settings for all hosted servers.
#[derive(Clone)]
pub struct HostSettings {
    /// The `ringfence` program, which is executed as the launcher of sandboxes.
    pub program: PathBuf,
    /// Weaknesses of this host that are accepted.
    pub accept: BTreeSet<Weakness>,
    /// The directory that contains the package cache.
    pub cache: PathBuf,
    /// Hosts that installations may connect to besides the configured registries, as `HOST[:PORT][+private]`.
    pub install_allow: Vec<String>,
    /// The directories of the host that servers may see. `None` if their entries alone decide.
    pub confinement: Option<Confinement>,
    /// Files of ringfence itself, which no server may see.
    pub protected_paths: ProtectedPaths,
    /// The paths that guests may write; the volumes of servers are added before they start. The host neither executes
    /// these files nor reads settings from them.
    pub guest_writable: GuestWritable,
    /// The directory for the locks of strict volumes, if they are strict.
    pub strict_volumes: Option<PathBuf>,
    /// The audit log for protected names that servers write, and for hosts that they are refused.
    pub audit: Audit,
    /// The tag of the scope, if there is one: packages that are installed from a project are not shared with other
    /// scopes.
    pub scope_tag: Option<String>,
    /// The secrets that entries can name.
    pub secrets: Secrets,
}

impl HostSettings {
    pub fn new(program: PathBuf, cache: PathBuf) -> Self {
        Self {
            program,
            accept: default_accepted_weaknesses(),
            cache,
            install_allow: Vec::new(),
            confinement: None,
            protected_paths: ProtectedPaths::default(),
            guest_writable: GuestWritable::default(),
            strict_volumes: None,
            audit: Audit::disabled(),
            scope_tag: None,
            secrets: Secrets::default(),
        }
    }
}

/// The state of a [`Host`](crate::Host).
pub(crate) struct Context {
    pub(crate) settings: HostSettings,
    /// Without persistence: its sandboxes end with this process.
    pub(crate) backend: Backend,
    pub(crate) shared_sandboxes: SharedSandboxes,
    /// Running installations. They continue after the start that requested them has been cancelled.
    pub(crate) installations: TaskTracker,
    pub(crate) template_builds: TemplateBuilds,
    pub(crate) shutdown: CancellationToken,
    /// Tasks that report protected names; each ends with its server.
    pub(crate) protected_name_reports: TaskTracker,
}

impl Context {
    pub(crate) fn new(settings: HostSettings) -> Self {
        let backend = Backend::native(BackendConfig::new(settings.program.clone()));
        Self {
            settings,
            backend,
            shared_sandboxes: SharedSandboxes::default(),
            installations: TaskTracker::new(),
            template_builds: TemplateBuilds::default(),
            shutdown: CancellationToken::new(),
            protected_name_reports: TaskTracker::new(),
        }
    }
}
