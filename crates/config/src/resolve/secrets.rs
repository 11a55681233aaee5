//! Converts `[secrets.NAME]`. Values are not read here.

use std::collections::{BTreeMap, BTreeSet};

use ringfence_core::suggest::{closest, join};
use ringfence_egress::{Location, RequestScope};

use super::allow;
use crate::document::{Config, SecretConfig};
use crate::error::ConfigError;
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
    let default_variable = || config.env.clone().unwrap_or_else(|| name.to_uppercase().replace('-', "_"));
    let variable = config.variable.clone().unwrap_or_else(default_variable);
    let is_letter = |c: char| c.is_ascii_alphabetic() || c == '_';
    if !variable.starts_with(is_letter) || !variable.chars().all(|c| is_letter(c) || c.is_ascii_digit()) {
        return Err(invalid(
            &format!("needs a variable, and `{variable}` is no name of one"),
            "set variable = \"NAME\", of letters, digits and `_`",
        ));
    }
    let hosts = allow::parse(&config.hosts, &["secrets", name, "hosts"], values)?;
    if hosts.is_empty() || hosts.iter().any(|rule| rule.requests().is_limited()) {
        return Err(invalid(
            "needs `hosts`, which have no methods and paths",
            "set hosts = [\"api.example.com\"]; the secret itself may have methods and paths",
        ));
    }
    let locations: BTreeSet<Location> = match &config.locations {
        None => [Location::Header].into(),
        Some(locations) => locations.iter().map(|location| (*location).into()).collect(),
    };
    if locations.is_empty() {
        return Err(invalid("has an empty `in`", "set in = [\"header\"], or leave it out"));
    }
    Ok(SecretSource {
        name: name.to_owned(),
        variable,
        location,
        hosts,
        requests: request_scope(name, config, values)?,
        locations,
    })
}

/// The methods and paths are parsed as those of a rule.
fn request_scope(name: &str, config: &SecretConfig, values: &Values) -> Result<RequestScope, ConfigError> {
    let invalid = |error: &dyn std::error::Error| ConfigError::Invalid {
        origin: values.origin(&["secrets", name]),
        problem: format!("secrets.{name}: {error}"),
        hint: Some("write methods such as GET, and paths such as /user or /repos/*".into()),
    };
    let methods = config.methods.iter().map(|text| text.parse()).collect::<Result<_, _>>();
    let paths = config.paths.iter().map(|text| text.parse()).collect::<Result<_, _>>();
    Ok(RequestScope {
        methods: methods.map_err(|error| invalid(&error))?,
        paths: paths.map_err(|error| invalid(&error))?,
    })
}

/// Refuses names of secrets that do not exist.
pub(super) fn check_names(names: &[String], key: &[&str], config: &Config, values: &Values) -> Result<(), ConfigError> {
    let Some(unknown) = names.iter().find(|name| !config.secrets.contains_key(*name)) else { return Ok(()) };
    let known = || config.secrets.keys().map(String::as_str);
    let hint = match closest(unknown, known()) {
        Some(similar) => format!("did you mean `{similar}`?"),
        None if config.secrets.is_empty() => format!("add a table [secrets.{unknown}]"),
        None => format!("the secrets are {}", join(known())),
    };
    let problem = format!("{} has the unknown secret `{unknown}`", key.join("."));
    Err(ConfigError::Invalid { origin: values.origin(key), problem, hint: Some(hint) })
}
