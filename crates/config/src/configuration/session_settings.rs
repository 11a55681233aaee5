//! Settings of sandbox sessions.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ringfence_core::{Flavors, TemplatePackages, Templates, Volume, Weakness, default_accepted_weaknesses};
use sha2::{Digest as _, Sha256};

use super::unpack_images::{ImageUnpackError, unpack_images};
use crate::guest_writable::GuestWritable;
use crate::network::NetworkSettings;
use crate::scope::{Scope, ScopeError};

/// The settings of a server's sessions. A limit that is `None` does not apply.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionSettings {
    pub templates: Templates,
    /// Installs the packages of templates; the server sets it. Without it, templates with packages cannot be used.
    pub template_packages: Option<TemplatePackages>,
    pub flavors: Flavors,
    pub default_template: String,
    pub default_flavor: String,
    pub network: NetworkSettings,
    pub volumes: Vec<Volume>,
    /// Paths in the volumes that are hidden from guests or read-only for them; see
    /// [`ProtectedPaths`](crate::ProtectedPaths).
    pub protected_paths: Vec<PathBuf>,
    /// The paths that guests of sessions and of hosted servers may write. The host executes no program in them.
    pub guest_writable: GuestWritable,
    /// If set, guests cannot create protected names in read-write volumes (strict volumes). The directory contains the
    /// locks of these volumes.
    pub strict_volumes: Option<PathBuf>,
    /// The weaknesses of the host that are accepted.
    pub accept: BTreeSet<Weakness>,
    pub timeout: Duration,
    pub max_timeout: Duration,
    pub max_sessions: usize,
    pub max_sessions_per_principal: Option<usize>,
    /// Maximum sum of the memory limits of all sessions.
    pub max_total_memory_bytes: Option<u64>,
    /// Maximum number of calls in the queue of one session.
    pub max_queued_calls: usize,
    /// Maximum size of the text of one result for a model.
    pub max_result_text: usize,
    pub idle_timeout: Duration,
    pub max_age: Option<Duration>,
    /// Whether a new session over a limit ends the least recently used idle session, instead of being refused.
    pub evict_idle: bool,
    /// The time for which sessions survive the death of the server that owns them.
    pub lease: Duration,
    /// Number of sandboxes that are started in advance, by template.
    pub pool: BTreeMap<String, usize>,
    /// Python modules that are imported before a session starts.
    pub preload: Vec<String>,
    /// Whether all clients get HTML that only repeats the text of a value, as that of tables.
    pub rich_html: bool,
    /// The scope of the run to which all sessions belong, if the endpoint has one.
    pub scope: Option<Arc<Scope>>,
    /// The name of the server process, if its sessions are to be found only by later processes with the same name.
    pub process_name: Option<String>,
}

impl SessionSettings {
    /// Restricts the sessions to the scope of one run: volumes must be beneath its roots, and the network allows only
    /// what the scope allows too.
    pub fn confined_to(mut self, scope: &Arc<Scope>) -> Result<Self, ScopeError> {
        self.volumes = scope.confinement.session_volumes(self.volumes)?;
        self.network = self.network.limited_to(&scope.network);
        self.scope = Some(Arc::clone(scope));
        Ok(self)
    }

    /// Names the server process. Its sessions are adopted only by processes with the same name, and survive the end of
    /// the process for their idle timeout.
    #[must_use]
    pub fn with_process_name(mut self, name: &str) -> Self {
        self.process_name = Some(name.to_owned());
        self.lease = self.lease.max(self.idle_timeout);
        self
    }

    /// Returns the tag of the sandboxes that this server may adopt from an earlier one: of its scope and its name.
    pub fn adoption_tag(&self) -> Option<String> {
        let scope = self.scope.as_ref().map(|scope| scope.tag.as_str());
        let Some(name) = &self.process_name else { return scope.map(str::to_owned) };
        // The letter distinguishes it from the tag of a scope, which is hexadecimal.
        let digest = format!("{:x}", Sha256::digest(name));
        Some(format!("{}n{}", scope.unwrap_or_default(), &digest[..16]))
    }

    /// Unpacks the images of templates into the directory `cache`. Sessions need the unpacked images. Can take minutes.
    pub fn with_unpacked_images(mut self, cache: Option<&Path>) -> Result<Self, ImageUnpackError> {
        self.templates = unpack_images(&self.templates, cache)?;
        Ok(self)
    }
}

impl Default for SessionSettings {
    fn default() -> Self {
        Self {
            templates: Templates::default(),
            template_packages: None,
            flavors: Flavors::default(),
            default_template: "python".into(),
            default_flavor: "small".into(),
            network: NetworkSettings::default(),
            volumes: Vec::new(),
            protected_paths: Vec::new(),
            guest_writable: GuestWritable::default(),
            strict_volumes: None,
            accept: default_accepted_weaknesses(),
            timeout: Duration::from_secs(30),
            max_timeout: Duration::from_mins(2),
            max_sessions: 64,
            max_sessions_per_principal: None,
            max_total_memory_bytes: None,
            max_queued_calls: 32,
            max_result_text: 16 << 10,
            idle_timeout: Duration::from_mins(30),
            max_age: None,
            evict_idle: false,
            lease: Duration::from_mins(1),
            pool: [("python", 4), ("node", 1), ("bash", 1), ("data", 1)]
                .map(|(name, size)| (name.to_owned(), size))
                .into(),
            preload: ["numpy", "pandas", "matplotlib.pyplot"].map(ToOwned::to_owned).into(),
            rich_html: false,
            scope: None,
            process_name: None,
        }
    }
}
