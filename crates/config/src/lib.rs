//! The configuration: defaults, a TOML file, environment variables and flags, resolved to types that the other crates
//! use. Also the scope of a run, and the paths that guests must not reach.
//!
//! Precedence: flag, environment variable, file, default. Every value has its origin, which errors and
//! `ringfence config show` name. Unknown keys and contradictory values are errors; a default that contradicts a value
//! that the user set is adjusted. The configuration contains only the locations of secrets; [`Configuration::tokens`]
//! reads them.

mod configuration;
mod document;
mod error;
#[cfg(fuzzing)]
pub mod fuzzing;
mod guest_writable;
mod network;
mod origin;
mod private_file;
mod protected_paths;
mod resolve;
mod scope;
mod secret_store;
mod secrets;
mod sources;
mod values;

pub use configuration::{
    CODE_FLAVOR, CodeSettings, Configuration, ConfiguredServer, HostingSettings, ImageUnpackError, LogSettings,
    PackageSettings, Secret, ServerSettings, SessionSettings, Timeouts, Token,
};
pub use document::{LogFormat, LogLevel, OutputMode, parse_host};
pub use error::ConfigError;
pub use guest_writable::{GuestWritable, GuestWritten, HostExecutes};
pub use network::NetworkSettings;
pub use origin::Origin;
pub use protected_paths::{ProtectedPaths, VolumeRefused, check_trusted_tree};
pub use resolve::parse_volume;
pub use scope::{
    Capability, Confinement, ModelIdentity, OutsideAllowedRoots, Run, SCOPE_DIGEST_VARIABLE, SCOPE_FILE_VARIABLE,
    Scope, ScopeError, ScopeFile,
};
pub use secret_store::{
    InvalidSecret, OnExisting, SecretSettings, SecretStore, SecretStoreError, SecretsRevision, StoredSecret,
    default_variable,
};
pub use secrets::{ListedSecret, SecretOrigin, Secrets, SelectSecretsError};
pub use sources::{CONFIG_FILE_VARIABLE, Environment, Flag, Sources, cache_directory, normalize_log_level};

use resolve::MissingSecrets;

/// Reads, merges, converts and checks all sources.
pub fn load(sources: &Sources) -> Result<Configuration, ConfigError> {
    load_with(sources, MissingSecrets::Refuse)
}

/// As [`load`], for commands that add and remove secrets: the configuration may name secrets that do not exist.
pub fn load_with_missing_secrets(sources: &Sources) -> Result<Configuration, ConfigError> {
    load_with(sources, MissingSecrets::Accept)
}

fn load_with(sources: &Sources, missing_secrets: MissingSecrets) -> Result<Configuration, ConfigError> {
    let (values, file) = sources.read()?;
    resolve::resolve(values, file, sources.environment.clone(), missing_secrets)
}

/// Returns the JSON Schema of the configuration file.
pub fn schema() -> serde_json::Value {
    schemars::schema_for!(document::Config).to_value()
}

#[cfg(test)]
mod tests;
