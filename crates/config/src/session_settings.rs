//! What sessions may be and have.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ringfence_core::{Root, Volume, Weakness};

use crate::protected_paths::{self, GuestWritable, NotKept, Own};
use crate::scope::{Scope, ScopeError};
use crate::unpack::{NotUnpacked, unpack_images};
use ringfence_core::Flavors;
use ringfence_core::{Templates, default_accepted_weaknesses};

/// The settings of a server's sessions. What is `None` is not limited.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    pub templates: Templates,
    pub flavors: Flavors,
    pub default_template: String,
    pub default_flavor: String,
    pub volumes: Vec<Volume>,
    /// What of the volumes is not for guests; see [`crate::protected_paths`].
    pub kept: Vec<PathBuf>,
    /// The paths that guests may write, including those of hosted servers: the host executes nothing there.
    pub guest_writable: GuestWritable,
    /// The directory for the locks of strict volumes, if they are strict.
    pub strict_volumes: Option<PathBuf>,
    pub accept: BTreeSet<Weakness>,
    pub timeout: Duration,
    pub most_timeout: Duration,
    pub most_sessions: usize,
    pub most_sessions_per_principal: Option<usize>,
    /// The memory limits of all sessions together.
    pub most_memory_bytes: Option<u64>,
    /// Calls that may wait for their turn in one session.
    pub most_queued_calls: usize,
    pub idle_timeout: Duration,
    pub most_age: Option<Duration>,
    /// Whether the least recently used idle session makes room for a new one.
    pub evict_idle: bool,
    /// How long a session outlives a server that no longer renews it.
    pub lease: Duration,
    /// Sandboxes that wait ready, by template.
    pub pool: BTreeMap<String, usize>,
    /// Python modules that are imported before a session asks for them.
    pub preload: Vec<String>,
    /// The run that they are all for, if they are for one.
    pub scope: Option<Arc<Scope>>,
}

impl Settings {
    /// The same, for one run: volumes are bound to its roots.
    pub fn within(mut self, scope: &Arc<Scope>) -> Result<Self, ScopeError> {
        self.volumes = scope.confinement.session_volumes(self.volumes)?;
        self.scope = Some(Arc::clone(scope));
        Ok(self)
    }

    /// The same, with all that is ringfence's own kept from its guests.
    pub fn keeping(mut self, own: &Own) -> Result<Self, NotKept> {
        self.kept = own.keep(&self.volumes)?;
        Ok(self)
    }

    /// The same, with the images of templates unpacked into the cache, for those who make sessions. May take long.
    pub fn unpacked(mut self, cache: Option<&Path>) -> Result<Self, NotUnpacked> {
        self.templates = unpack_images(&self.templates, cache)?;
        Ok(self)
    }

    /// Why a root file system or image of a template cannot be used, if so.
    pub fn check_roots(&self, own: &Own) -> Result<(), String> {
        let written = GuestWritable::of(&self.volumes);
        for template in self.templates.iter() {
            match (&template.image, &template.root) {
                (Some(image), _) => protected_paths::unwritten(image, &written)
                    .map_err(|why| format!("templates.{}.image: {why}", template.name))?,
                (None, Root::Directory(root)) => {
                    own.root(root, &written).map_err(|why| format!("templates.{}.root: {why}", template.name))?
                }
                (None, Root::Host) => continue,
            };
        }
        Ok(())
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            templates: Templates::default(),
            flavors: Flavors::default(),
            default_template: "python".into(),
            default_flavor: "small".into(),
            volumes: Vec::new(),
            kept: Vec::new(),
            guest_writable: GuestWritable::default(),
            strict_volumes: None,
            accept: default_accepted_weaknesses(),
            timeout: Duration::from_secs(30),
            most_timeout: Duration::from_secs(120),
            most_sessions: 64,
            most_sessions_per_principal: None,
            most_memory_bytes: None,
            most_queued_calls: 32,
            idle_timeout: Duration::from_secs(1800),
            most_age: None,
            evict_idle: false,
            lease: Duration::from_secs(60),
            pool: [("python", 4), ("node", 1), ("bash", 1)].map(|(name, size)| (name.to_owned(), size)).into(),
            preload: ["numpy", "pandas", "matplotlib.pyplot"].map(ToOwned::to_owned).into(),
            scope: None,
        }
    }
}
