//! What is offered at `/mcp/NAME`: `[profiles.NAME]`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;

use super::error::ConfigError;
use super::values::Values;
use ringfence_core::suggest::{closest, join};
use ringfence_entries::{Profile, ProfileMode};

/// A named selection of servers and tools, served at /mcp/NAME.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ProfileConfig {
    /// Whether tools are offered as they are, or to code that calls them; direct unless given.
    pub mode: Option<ProfileMode>,
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

/// The profile that is there without being configured: all servers, for code.
const CODE: &str = "code";

pub(super) fn resolve(profiles: BTreeMap<String, ProfileConfig>) -> BTreeMap<String, Profile> {
    let mut profiles: BTreeMap<String, Profile> =
        profiles.into_iter().map(|(name, given)| (name, resolve_one(given))).collect();
    profiles.entry(CODE.into()).or_insert_with(|| Profile { mode: ProfileMode::Code, ..Profile::default() });
    profiles
}

/// The profile of the default endpoint must be one that there is.
pub(super) fn check_default(
    name: Option<&str>,
    profiles: &BTreeMap<String, Profile>,
    values: &Values,
) -> Result<(), ConfigError> {
    let Some(name) = name.filter(|name| !profiles.contains_key(*name)) else { return Ok(()) };
    let known = || profiles.keys().map(String::as_str);
    Err(ConfigError::Wrong {
        origin: values.origin(&["server", "profile"]),
        problem: format!("server.profile: there is no profile `{name}`"),
        hint: Some(match closest(name, known()) {
            Some(meant) => format!("did you mean `{meant}`?"),
            None => format!("known are {}; [profiles.{name}] would make it", join(known())),
        }),
    })
}

fn resolve_one(given: ProfileConfig) -> Profile {
    Profile {
        mode: given.mode.unwrap_or_default(),
        servers: given.servers,
        allow: given.allow,
        deny: given.deny,
        prefix: given.prefix.unwrap_or(true),
        builtin_tools: given.own_tools.unwrap_or(true),
    }
}
