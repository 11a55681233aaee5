//! The sources of a configuration: built-in defaults, the file, environment variables and flags.
//!
//! Precedence: flag, environment variable, file, default. Each value is checked with its source, so that an error names
//! the source. This module never reads a secret.

mod environment;
mod file;
mod parse;
mod variables;

use std::path::PathBuf;

pub use environment::{Environment, cache_directory};
#[cfg(any(test, fuzzing))]
pub(crate) use parse::parse_file;
#[cfg(test)]
pub(crate) use variables::values_from_environment;
pub use variables::{CONFIG_FILE_VARIABLE, normalize_log_level};
pub(crate) use variables::{IMAGE_VARIABLE, KEYS, RUNTIME_VARIABLE, foreign_key_warning, misspelt_variables};

use crate::error::ConfigError;
use crate::origin::Origin;
use crate::values::{Values, key_path};

/// A value from the command line.
#[derive(Debug, Clone)]
pub struct Flag {
    /// The flag as it is written: `--port`.
    pub name: &'static str,
    /// The key that it sets: `server.port`.
    pub key: &'static str,
    pub value: toml::Value,
}

impl Flag {
    pub fn new(name: &'static str, key: &'static str, value: impl Into<toml::Value>) -> Self {
        Self { name, key, value: value.into() }
    }
}

/// The inputs of [`crate::load`].
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// The file that the user named. Without it, the default locations are searched.
    pub file: Option<PathBuf>,
    pub environment: Environment,
    pub flags: Vec<Flag>,
}

impl Sources {
    /// Returns the paths where the configuration file may be, whether they exist or not.
    pub fn candidate_files(&self) -> Vec<PathBuf> {
        file::candidates(self.file.as_deref(), &self.environment)
    }

    /// Reads and merges all sources. Also returns the path of the configuration file, if there is one.
    pub(crate) fn read(&self) -> Result<(Values, Option<PathBuf>), ConfigError> {
        let file = file::read_configuration(self.file.as_deref(), &self.environment)?;
        let mut values = parse::defaults()?;
        if let Some((path, text)) = &file {
            values.overlay(parse::parse_file(text, path)?);
        }
        values.overlay(variables::values_from_environment(&self.environment)?);
        for flag in &self.flags {
            values.overlay(flag_value(flag)?);
        }
        Ok((values, file.map(|(path, _)| path)))
    }
}

fn flag_value(flag: &Flag) -> Result<Values, ConfigError> {
    let origin = Origin::Flag(flag.name);
    let mut values = Values::default();
    values.set(key_path(flag.key), flag.value.clone(), origin.clone());
    values.config().map_err(|problem| ConfigError::Invalid { origin, problem, hint: None })?;
    Ok(values)
}
