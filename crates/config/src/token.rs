//! Bearer tokens: named in the configuration, read from where they lie, never shown.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use super::error::ConfigError;
use super::file::TokenConfig;
use super::find::Environment;
use super::values::Values;

#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("(set)")
    }
}

/// A secret, and the principal that holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    pub name: String,
    pub secret: Secret,
}

/// Where the secret of a token lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TokenSource {
    pub(super) name: String,
    place: Place,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Place {
    Variable(String),
    File(PathBuf),
}

impl TokenSource {
    pub(super) fn file(&self) -> Option<&Path> {
        match &self.place {
            Place::Variable(_) => None,
            Place::File(path) => Some(path),
        }
    }

    pub(super) fn read(&self, environment: &Environment) -> Result<Token, ConfigError> {
        let lacking = |problem: String| ConfigError::Secret { name: self.name.clone(), problem };
        let secret = match &self.place {
            Place::Variable(name) => {
                environment.get(name).ok_or_else(|| lacking(format!("the variable {name} is not set")))?.to_owned()
            }
            Place::File(path) => {
                let text = std::fs::read_to_string(path);
                text.map_err(|error| lacking(format!("{} cannot be read: {error}", path.display())))?
            }
        };
        let secret = secret.trim();
        if secret.is_empty() {
            return Err(lacking(match &self.place {
                Place::Variable(name) => format!("the variable {name} is empty"),
                Place::File(path) => format!("{} is empty", path.display()),
            }));
        }
        Ok(Token { name: self.name.clone(), secret: Secret(secret.to_owned()) })
    }
}

pub(super) fn sources(
    tokens: &BTreeMap<String, TokenConfig>,
    values: &Values,
) -> Result<Vec<TokenSource>, ConfigError> {
    let source = |(name, token): (&String, &TokenConfig)| {
        let origin = values.origin(&["server", "tokens", name]);
        let wrong = |problem: &str| ConfigError::Wrong {
            origin: origin.clone(),
            problem: format!("server.tokens.{name} {problem}"),
            hint: Some("write env = \"VARIABLE\" or file = \"PATH\"".into()),
        };
        if name == ringfence_core::Principal::local().name() {
            return Err(wrong("has the name of callers without a token; choose another"));
        }
        if name == ringfence_core::Principal::operator().name() {
            return Err(wrong("has the name of whoever runs the server; choose another"));
        }
        // Else it could be taken for another in the namespace of a scope.
        if name.contains('@') {
            return Err(wrong(
                "has an `@` in its name, which stands between a caller and its namespace; choose another",
            ));
        }
        let place = match (&token.env, &token.file) {
            (Some(variable), None) => Place::Variable(variable.clone()),
            (None, Some(path)) => Place::File(origin.anchor(path)),
            (None, None) => return Err(wrong("does not say where its secret is")),
            (Some(_), Some(_)) => return Err(wrong("has both `env` and `file`")),
        };
        Ok(TokenSource { name: name.clone(), place })
    };
    tokens.iter().map(source).collect()
}
