//! Converts `[server.tokens.NAME]`. Secrets are not read here.

use std::collections::BTreeMap;

use ringfence_core::Principal;

use crate::configuration::{SecretLocation, TokenSource};
use crate::document::TokenConfig;
use crate::error::ConfigError;
use crate::values::Values;

pub(super) fn resolve(
    tokens: &BTreeMap<String, TokenConfig>,
    values: &Values,
) -> Result<Vec<TokenSource>, ConfigError> {
    tokens.iter().map(|(name, config)| token(name, config, values)).collect()
}

fn token(name: &str, config: &TokenConfig, values: &Values) -> Result<TokenSource, ConfigError> {
    const NAME_HINT: &str = "choose another name";
    const LOCATION_HINT: &str = "set either env = \"VARIABLE\" or file = \"PATH\"";
    let origin = values.origin(&["server", "tokens", name]);
    let invalid = |problem: &str, hint: &str| ConfigError::Invalid {
        origin: origin.clone(),
        problem: format!("server.tokens.{name} {problem}"),
        hint: Some(hint.into()),
    };
    if name == Principal::local().name() {
        return Err(invalid("has a reserved name: it identifies callers without a token", NAME_HINT));
    }
    if name == Principal::operator().name() {
        return Err(invalid("has a reserved name: it identifies the operator of the server", NAME_HINT));
    }
    // Otherwise the name could be mistaken for another principal in the namespace of a scope.
    if name.contains('@') {
        return Err(invalid("has an `@` in its name, which separates a principal from its namespace", NAME_HINT));
    }
    let location = match (&config.env, &config.file) {
        (Some(variable), None) => SecretLocation::Variable(variable.clone()),
        (None, Some(path)) => SecretLocation::File(origin.resolve_path(path)),
        (None, None) => return Err(invalid("has neither `env` nor `file`", LOCATION_HINT)),
        (Some(_), Some(_)) => return Err(invalid("has both `env` and `file`", LOCATION_HINT)),
    };
    Ok(TokenSource { name: name.to_owned(), location })
}
