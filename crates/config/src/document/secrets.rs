//! `[secrets.NAME]`.

use std::path::PathBuf;

use ringfence_egress::Location;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A secret, of which sandboxes get only a placeholder. Its value is in exactly one of `env`, `file` and `command`.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct SecretConfig {
    /// The environment variable that contains the value.
    pub(crate) env: Option<String>,
    /// The file that contains the value.
    pub(crate) file: Option<PathBuf>,
    /// A program with arguments that prints the value. It is run without a shell when the server starts.
    pub(crate) command: Option<Vec<String>>,
    /// The variable in which a guest finds the placeholder. The default is `env`, or the name in upper case.
    pub(crate) variable: Option<String>,
    /// The hosts that receive the value, as `HOST[:PORT][+private]`. They must be allowed by a list `allow` too.
    pub(crate) hosts: Vec<String>,
    /// The HTTP methods of requests that receive the value; all by default.
    pub(crate) methods: Vec<String>,
    /// The paths of requests that receive the value; all by default.
    pub(crate) paths: Vec<String>,
    /// The parts of a request in which the value replaces the placeholder; `header` by default.
    #[serde(rename = "in")]
    pub(crate) locations: Option<Vec<LocationConfig>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum LocationConfig {
    Header,
    Query,
    Basic,
}

impl From<LocationConfig> for Location {
    fn from(location: LocationConfig) -> Self {
        match location {
            LocationConfig::Header => Self::Header,
            LocationConfig::Query => Self::Query,
            LocationConfig::Basic => Self::Basic,
        }
    }
}

impl From<Location> for LocationConfig {
    fn from(location: Location) -> Self {
        match location {
            Location::Header => Self::Header,
            Location::Query => Self::Query,
            Location::Basic => Self::Basic,
        }
    }
}
