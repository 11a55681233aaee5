//! Converts `[secrets.NAME]`. Values are not read here.

use std::collections::BTreeMap;

use ringfence_core::suggest::{closest, join};
use ringfence_egress::Location;

use crate::document::{Config, SecretConfig};
use crate::error::ConfigError;
use crate::secret_store::{InvalidSecret, SecretSettings, SecretStore, default_variable};
use crate::secrets::{SecretSource, ValueLocation};
use crate::values::Values;

pub(super) fn resolve(
    secrets: &BTreeMap<String, SecretConfig>,
    values: &Values,
) -> Result<Vec<SecretSource>, ConfigError> {
    secrets.iter().map(|(name, config)| secret(name, config, values)).collect()
}

fn secret(name: &str, config: &SecretConfig, values: &Values) -> Result<SecretSource, ConfigError> {
    const LOCATION_HINT: &str = "set one of env = \"VARIABLE\", file = \"PATH\" and command = [\"PROGRAM\", …]";
    let origin = values.origin(&["secrets", name]);
    let invalid = |problem: &str, hint: &str| ConfigError::Invalid {
        origin: origin.clone(),
        problem: format!("secrets.{name} {problem}"),
        hint: Some(hint.into()),
    };
    let location = match (&config.env, &config.file, &config.command) {
        (Some(variable), None, None) => ValueLocation::Variable(variable.clone()),
        (None, Some(path), None) => ValueLocation::File(origin.resolve_path(path)),
        (None, None, Some(command)) if command.is_empty() => {
            return Err(invalid("has an empty `command`", LOCATION_HINT));
        }
        (None, None, Some(command)) => ValueLocation::Command(command.clone()),
        (None, None, None) => return Err(invalid("has no `env`, `file` or `command`", LOCATION_HINT)),
        _ => return Err(invalid("has more than one of `env`, `file` and `command`", LOCATION_HINT)),
    };
    let variable = config.env.clone().unwrap_or_else(|| default_variable(name));
    let settings = SecretSettings {
        variable: config.variable.clone().unwrap_or(variable),
        hosts: config.hosts.clone(),
        methods: config.methods.clone(),
        paths: config.paths.clone(),
        locations: match &config.locations {
            None => [Location::Header].into(),
            Some(locations) => locations.iter().map(|location| (*location).into()).collect(),
        },
    };
    let usage = settings.parse().map_err(|error| match &error {
        InvalidSecret::Variable(variable) => invalid(
            &format!("needs a variable, and `{variable}` is no name of one"),
            "set variable = \"NAME\", of letters, digits and `_`",
        ),
        InvalidSecret::Host { problem, hint } => ConfigError::Invalid {
            origin: values.origin(&["secrets", name, "hosts"]),
            problem: format!("secrets.{name}.hosts: {problem}"),
            hint: Some((*hint).into()),
        },
        InvalidSecret::Hosts => invalid(
            "needs `hosts`, which have no methods and paths",
            "set hosts = [\"api.example.com\"]; the secret itself may have methods and paths",
        ),
        InvalidSecret::Locations => invalid("has an empty `in`", "set in = [\"header\"], or leave it out"),
        InvalidSecret::Requests(problem) => ConfigError::Invalid {
            origin: origin.clone(),
            problem: format!("secrets.{name}: {problem}"),
            hint: Some(error.hint().into()),
        },
    })?;
    Ok(SecretSource { name: name.to_owned(), location, usage, origin })
}

/// Refuses names of secrets that neither the configuration nor the store has.
pub(super) fn check_names(config: &Config, values: &Values, store: Option<&SecretStore>) -> Result<(), ConfigError> {
    let of_sessions = config.sessions.secrets.iter().flatten().map(|name| (vec!["sessions", "secrets"], name));
    let of_templates = config.templates.iter().flat_map(|(template, settings)| {
        settings.secrets.iter().map(move |name| (vec!["templates", template.as_str(), "secrets"], name))
    });
    let unknown = of_sessions.chain(of_templates).filter(|(_, name)| !config.secrets.contains_key(*name));
    let unknown: Vec<_> = unknown.collect();
    // The store is read only if it is needed, so that a damaged file affects no other configuration.
    let (Some(_), Some(store)) = (unknown.first(), store) else {
        return unknown.first().map_or(Ok(()), |(key, name)| Err(unknown_name(name, key, config, values, &[])));
    };
    let stored: Vec<String> = store.read()?.into_keys().collect();
    let unknown = unknown.iter().find(|(_, name)| !stored.contains(name));
    unknown.map_or(Ok(()), |(key, name)| Err(unknown_name(name, key, config, values, &stored)))
}

fn unknown_name(unknown: &str, key: &[&str], config: &Config, values: &Values, stored: &[String]) -> ConfigError {
    let mut known: Vec<&str> = config.secrets.keys().chain(stored).map(String::as_str).collect();
    known.sort_unstable();
    known.dedup();
    let hint = match closest(unknown, known.iter().copied()) {
        Some(similar) => format!("did you mean `{similar}`?"),
        None if known.is_empty() => format!("add it with `ringfence secret add {unknown}`, or as [secrets.{unknown}]"),
        None => format!("the secrets are {}", join(known)),
    };
    let problem = format!("{} has the unknown secret `{unknown}`", key.join("."));
    ConfigError::Invalid { origin: values.origin(key), problem, hint: Some(hint) }
}
