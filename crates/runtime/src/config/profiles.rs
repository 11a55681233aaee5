//! What is offered at `/mcp/NAME`: `[profiles.NAME]`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::servers::Profile;

/// A named selection of servers and tools, served at /mcp/NAME.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ProfileConfig {
    /// Servers by name or uuid; all if this is left out.
    pub servers: Option<Vec<String>>,
    /// Tools that are offered, by their own name or as `server__tool`, with `*` for anything; all if this is left out.
    pub allow: Vec<String>,
    /// Tools that are not offered, whatever else is said.
    pub deny: Vec<String>,
    /// Whether the names of tools and prompts begin with that of their server; true unless given.
    pub prefix: Option<bool>,
    /// Whether sandbox sessions are offered too; true unless given.
    pub own_tools: Option<bool>,
}

pub(super) fn resolve(profiles: BTreeMap<String, ProfileConfig>) -> BTreeMap<String, Profile> {
    profiles.into_iter().map(|(name, given)| (name, resolve_one(given))).collect()
}

fn resolve_one(given: ProfileConfig) -> Profile {
    Profile {
        servers: given.servers,
        allow: given.allow,
        deny: given.deny,
        prefix: given.prefix.unwrap_or(true),
        own_tools: given.own_tools.unwrap_or(true),
    }
}
