//! `[profiles.NAME]`.

use ringfence_entries::ProfileMode;
use schemars::JsonSchema;
use serde::Deserialize;

/// A named selection of servers and tools, served at /mcp/NAME.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ProfileConfig {
    /// Whether clients call tools directly, or run code that calls them; direct by default.
    pub(crate) mode: Option<ProfileMode>,
    /// Servers by name or UUID; all by default.
    pub(crate) servers: Option<Vec<String>>,
    /// Tools to offer, by their name or as `server__tool`, with `*` as a wildcard; all by default.
    pub(crate) allow: Vec<String>,
    /// Tools not to offer. Takes precedence over `allow`.
    pub(crate) deny: Vec<String>,
    /// Prefix the names of tools and prompts with the name of their server; true by default.
    pub(crate) prefix: Option<bool>,
    /// Also offer the tools of sandbox sessions; true by default.
    pub(crate) own_tools: Option<bool>,
}
