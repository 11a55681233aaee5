//! The configuration: a file, the environment and the command line, over defaults that are built in.
//!
//! A flag is stronger than a variable, a variable than the file, the file than a default; for every value it is known
//! where it came from. Unknown keys and values that contradict each other are refused. A default that contradicts what
//! was given follows it. Secrets are named here and read only by [`Configuration::tokens`].

mod cache_directory;
mod check;
mod code;
mod document;
mod error;
mod file;
mod find;
mod foreign;
#[cfg(fuzzing)]
pub mod fuzzing;
mod keys;
mod origin;
mod profiles;
mod protected_paths;
mod resolve;
mod scope;
mod servers;
mod session_settings;
mod show;
mod size;
mod times;
mod token;
mod unpack;
mod values;
mod volume;

use std::path::PathBuf;

pub use cache_directory::cache_directory;
pub use code::{CODE_FLAVOR, CodeSettings, OutputMode};
pub use error::ConfigError;
pub use file::{Config, LogFormat, LogLevel, host};
pub use find::Environment;
pub use keys::{FILE_VARIABLE, level};
pub use origin::Origin;
pub use protected_paths::{GuestWritable, GuestWritten, HostExecutes, NotKept, Own, unwritten};
pub use resolve::{Configuration, Hosting, Log, Server};
pub use scope::{
    Capability, Confinement, ModelIdentity, OutOfRoots, Run, SCOPE_DIGEST_VARIABLE, SCOPE_FILE_VARIABLE, Scope,
    ScopeError, ScopeFile,
};
pub use servers::ConfiguredServer;
pub use session_settings::Settings;
pub use times::Times;
pub use token::{Secret, Token};
pub use unpack::NotUnpacked;
pub use volume::parse_volume;

use values::Values;

/// A value from the command line.
#[derive(Debug, Clone)]
pub struct Flag {
    /// As it is written: `--port`.
    pub name: &'static str,
    /// The key that it stands for: `server.port`.
    pub key: &'static str,
    pub value: toml::Value,
}

impl Flag {
    pub fn new(name: &'static str, key: &'static str, value: impl Into<toml::Value>) -> Self {
        Self { name, key, value: value.into() }
    }
}

/// What a configuration is made from.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// The file that was asked for; without one the usual places are looked at.
    pub file: Option<PathBuf>,
    pub environment: Environment,
    pub flags: Vec<Flag>,
}

impl Sources {
    /// The files that may be the configuration, there or not.
    pub fn files(&self) -> Vec<PathBuf> {
        find::candidates(self.file.as_deref(), &self.environment)
    }
}

/// Reads, merges and checks everything.
pub fn load(sources: &Sources) -> Result<Configuration, ConfigError> {
    let file = find::read_file(sources.file.as_deref(), &sources.environment)?;
    let mut values = document::defaults()?;
    if let Some((path, text)) = &file {
        values.overlay(document::read(text, path)?);
    }
    values.overlay(keys::from_environment(&sources.environment)?);
    for flag in &sources.flags {
        let mut given = Values::default();
        given.set(flag.key.split('.').map(Into::into).collect(), flag.value.clone(), Origin::Flag(flag.name));
        given.config().map_err(|problem| ConfigError::Wrong {
            origin: Origin::Flag(flag.name),
            problem,
            hint: None,
        })?;
        values.overlay(given);
    }
    resolve::resolve(values, file.map(|(path, _)| path), sources.environment.clone())
}

/// The JSON Schema of the file.
pub fn schema() -> serde_json::Value {
    schemars::schema_for!(Config).to_value()
}

#[cfg(test)]
mod tests;
