//! Bearer tokens. The configuration has only the locations of their secrets; secrets are never printed.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::error::ConfigError;
use crate::sources::Environment;

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

/// A secret, and the name of the principal that it authenticates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    pub name: String,
    pub secret: Secret,
}

/// A token whose secret was not read yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TokenSource {
    pub(crate) name: String,
    pub(crate) location: SecretLocation,
}

/// The location of a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SecretLocation {
    Variable(String),
    File(PathBuf),
}

impl TokenSource {
    pub(super) fn file(&self) -> Option<&Path> {
        match &self.location {
            SecretLocation::Variable(_) => None,
            SecretLocation::File(path) => Some(path),
        }
    }

    pub(super) fn read(&self, environment: &Environment) -> Result<Token, ConfigError> {
        let failed = |problem: String| ConfigError::Secret { name: self.name.clone(), problem };
        let secret = match &self.location {
            SecretLocation::Variable(name) => environment
                .get(name)
                .ok_or_else(|| failed(format!("the environment variable {name} is not set")))?
                .to_owned(),
            SecretLocation::File(path) => {
                let text = std::fs::read_to_string(path);
                text.map_err(|error| failed(format!("cannot read {}: {error}", path.display())))?
            }
        };
        let secret = secret.trim();
        if secret.is_empty() {
            return Err(failed(match &self.location {
                SecretLocation::Variable(name) => format!("the environment variable {name} is empty"),
                SecretLocation::File(path) => format!("{} is empty", path.display()),
            }));
        }
        Ok(Token { name: self.name.clone(), secret: Secret(secret.to_owned()) })
    }
}
