//! Converts `[profiles.NAME]`.

use std::collections::BTreeMap;

use ringfence_core::suggest::{closest, join};
use ringfence_entries::{Profile, ProfileMode};

use crate::document::ProfileConfig;
use crate::error::ConfigError;
use crate::values::Values;

/// The profile that exists without being configured: all servers, in code mode.
const CODE: &str = "code";

pub(super) fn resolve(profiles: BTreeMap<String, ProfileConfig>) -> BTreeMap<String, Profile> {
    let mut profiles: BTreeMap<String, Profile> =
        profiles.into_iter().map(|(name, config)| (name, profile(config))).collect();
    profiles.entry(CODE.into()).or_insert_with(|| Profile { mode: ProfileMode::Code, ..Profile::default() });
    profiles
}

fn profile(config: ProfileConfig) -> Profile {
    Profile {
        mode: config.mode.unwrap_or_default(),
        servers: config.servers,
        allow: config.allow,
        deny: config.deny,
        prefix: config.prefix.unwrap_or(true),
        builtin_tools: config.own_tools.unwrap_or(true),
    }
}

/// Checks that the profile of the default endpoint exists.
pub(super) fn check_default(
    name: Option<&str>,
    profiles: &BTreeMap<String, Profile>,
    values: &Values,
) -> Result<(), ConfigError> {
    let Some(name) = name.filter(|name| !profiles.contains_key(*name)) else { return Ok(()) };
    let known = || profiles.keys().map(String::as_str);
    Err(ConfigError::Invalid {
        origin: values.origin(&["server", "profile"]),
        problem: format!("server.profile: unknown profile `{name}`"),
        hint: Some(match closest(name, known()) {
            Some(suggestion) => format!("did you mean `{suggestion}`?"),
            None => format!("known profiles: {}; [profiles.{name}] defines a new one", join(known())),
        }),
    })
}
