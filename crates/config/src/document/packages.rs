//! `[packages]`.

use schemars::JsonSchema;
use serde::Deserialize;

use super::units::ByteSize;

/// The read-only mirror of package registries that sandboxes install from.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct PackagesConfig {
    /// Whether sandboxes can install packages from the mirror.
    pub(crate) enabled: Option<bool>,
    pub(crate) registries: RegistriesConfig,
    /// Maximum size of the cache on disk.
    pub(crate) max_size: Option<ByteSize>,
}

/// The registries that fill the mirror, instead of those that pip and npm of this machine use.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RegistriesConfig {
    /// The URL of an index of Python packages with the simple API (PEP 503).
    pub(crate) python: Option<String>,
    /// The URL of an npm registry.
    pub(crate) npm: Option<String>,
}
