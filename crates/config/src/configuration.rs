//! The resolved configuration, as the other crates use it.
//!
//! A `Configuration` is complete and consistent: every default is applied, and values do not contradict each other. The
//! module `resolve` builds it. Secrets are not in it; [`Configuration::tokens`] reads them.

mod code_settings;
mod package_settings;
mod server_settings;
mod session_settings;
mod show;
mod tokens;
mod unpack_images;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ringfence_entries::{Profile, ServerEntry, Warning};

pub use code_settings::{CODE_FLAVOR, CodeSettings};
pub use package_settings::PackageSettings;
pub use server_settings::{ServerSettings, Timeouts};
pub use session_settings::SessionSettings;
pub use tokens::{Secret, Token};
pub(crate) use tokens::{SecretLocation, TokenSource};
pub use unpack_images::ImageUnpackError;

use crate::document::{LogFormat, LogLevel};
use crate::error::ConfigError;
use crate::secret_store::SecretStore;
use crate::secrets::{self, ListedSecret, SecretSource, Secrets};
use crate::sources::Environment;
use crate::values::Values;

/// A complete and consistent configuration.
#[derive(Debug)]
pub struct Configuration {
    /// The file that was read, if there is one.
    pub file: Option<PathBuf>,
    pub server: ServerSettings,
    pub sessions: SessionSettings,
    pub code: CodeSettings,
    pub hosting: HostingSettings,
    pub packages: PackageSettings,
    /// The servers in the configuration file.
    pub servers: Vec<ConfiguredServer>,
    /// The profiles that are served at `/mcp/NAME`: those of the file, and `code`.
    pub profiles: BTreeMap<String, Profile>,
    pub log: LogSettings,
    /// Warnings about settings that are ignored, for the log.
    pub warnings: Vec<String>,
    pub(crate) values: Values,
    pub(crate) state_directory: Option<PathBuf>,
    pub(crate) tokens: Vec<TokenSource>,
    pub(crate) secrets: Vec<SecretSource>,
    pub(crate) environment: Environment,
}

/// Further sources of MCP servers, and settings of all hosted servers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostingSettings {
    /// Files in the `mcpServers` format.
    pub files: Vec<PathBuf>,
    /// Also host the servers in the settings of MCP clients.
    pub import: bool,
    /// List the servers in `~/MCPs`, and start each when it is used.
    pub discover: bool,
    /// Accept everything that a server offers at its first connection.
    pub pin_on_first_use: bool,
    /// Hosts that installations may connect to besides the registries.
    pub install_allow: Vec<String>,
}

/// A server in the configuration file.
#[derive(Debug, Clone, PartialEq)]
pub struct ConfiguredServer {
    pub entry: ServerEntry,
    pub warnings: Vec<Warning>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogSettings {
    pub level: LogLevel,
    pub format: LogFormat,
}

impl Configuration {
    /// Returns the files that contain the secrets of tokens and of sandboxes.
    pub(crate) fn secret_files(&self) -> Vec<PathBuf> {
        let of_tokens = self.tokens.iter().filter_map(TokenSource::file);
        of_tokens.chain(self.secrets.iter().filter_map(SecretSource::file)).map(PathBuf::from).collect()
    }

    /// Reads the secrets of all tokens.
    pub fn tokens(&self) -> Result<Vec<Token>, ConfigError> {
        self.tokens.iter().map(|token| token.read(&self.environment)).collect()
    }

    /// Reads the values of all secrets of sandboxes. May run commands, and blocks until they end.
    pub fn secrets(&self) -> Result<Secrets, ConfigError> {
        secrets::read(&self.secrets, &self.environment, self.secret_store().ok())
    }

    /// The secrets that were added with `ringfence secret`.
    pub fn secret_store(&self) -> Result<SecretStore, ConfigError> {
        self.state_directory().map(|state| secret_store(&state, &self.environment))
    }

    /// Lists all secrets without their values, sorted by name.
    pub fn list_secrets(&self) -> Result<Vec<ListedSecret>, ConfigError> {
        let stored = self.secret_store().map_or_else(|_| Ok(BTreeMap::new()), |store| store.read())?;
        Ok(secrets::list(stored, &self.secrets))
    }

    fn has_secret(&self, name: &str) -> bool {
        self.tokens.iter().any(|token| token.name == name && token.read(&self.environment).is_ok())
    }

    /// The directory for the locks of strict volumes.
    pub fn volume_lock_directory(&self) -> Result<PathBuf, ConfigError> {
        self.state_directory().map(|state| volume_lock_directory(&state))
    }

    /// The directory for sessions, servers and the audit log.
    pub fn state_directory(&self) -> Result<PathBuf, ConfigError> {
        self.state_directory.clone().ok_or(ConfigError::NoStateDirectory)
    }
}

pub(crate) fn volume_lock_directory(state_directory: &Path) -> PathBuf {
    state_directory.join("volumes")
}

pub(crate) fn secret_store(state_directory: &Path, environment: &Environment) -> SecretStore {
    SecretStore::new(state_directory, environment.record_directory().as_deref())
}
