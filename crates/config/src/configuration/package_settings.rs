//! Settings of the package mirror.

/// The read-only mirror of package registries that sandboxes install from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackageSettings {
    pub is_enabled: bool,
    /// The index of Python packages. `None` for those that pip of this machine uses.
    pub python_index: Option<String>,
    /// The registry of npm packages. `None` for those that npm of this machine uses.
    pub npm_registry: Option<String>,
    /// Maximum size of the cache.
    pub max_bytes: u64,
}

impl Default for PackageSettings {
    fn default() -> Self {
        Self { is_enabled: true, python_index: None, npm_registry: None, max_bytes: 10 << 30 }
    }
}
