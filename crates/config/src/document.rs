//! The configuration file as serde types, one file for each section.
//!
//! The doc comments of these types are the descriptions in `docs/ringfence.schema.json`. A field that is left out is
//! `None` or empty: `defaults.toml` and the module `resolve` provide its default. Unknown keys are errors. This module
//! checks each value alone; `resolve` checks values against each other.

mod code;
mod error_text;
mod hosting;
mod log;
mod packages;
mod profiles;
mod sandboxes;
mod secrets;
mod server;
mod servers;
mod sessions;
mod units;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;

pub(crate) use code::CodeConfig;
pub use code::OutputMode;
pub(crate) use error_text::{plain_message, unknown_key};
pub(crate) use hosting::HostingConfig;
pub(crate) use log::LogConfig;
pub use log::{LogFormat, LogLevel};
pub(crate) use packages::PackagesConfig;
pub(crate) use profiles::ProfileConfig;
pub(crate) use sandboxes::{FlavorConfig, TemplateConfig};
pub(crate) use secrets::{LocationConfig, SecretConfig};
pub use server::parse_host;
pub(crate) use server::{ServerConfig, TokenConfig};
pub(crate) use servers::ServerEntryConfig;
pub(crate) use sessions::SessionsConfig;
pub(crate) use units::{ByteSize, Count, Seconds};

/// The configuration of ringfence.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(title = "ringfence.toml")]
pub(crate) struct Config {
    pub(crate) server: ServerConfig,
    pub(crate) sessions: SessionsConfig,
    /// Sizes of sandboxes by name. Adds new flavors, or changes small, medium and large.
    pub(crate) flavors: BTreeMap<String, FlavorConfig>,
    /// Kinds of sandboxes by name. Adds new templates, or changes python, node, bash and data.
    pub(crate) templates: BTreeMap<String, TemplateConfig>,
    pub(crate) code: CodeConfig,
    pub(crate) hosting: HostingConfig,
    pub(crate) packages: PackagesConfig,
    /// Secrets by name. Sandboxes get them with the key `secrets` of sessions, a template or the box of a server.
    pub(crate) secrets: BTreeMap<String, SecretConfig>,
    /// MCP servers by name: programs to host, or remote servers to connect to.
    pub(crate) servers: BTreeMap<String, ServerEntryConfig>,
    /// Profiles by name. Each is served at /mcp/NAME.
    pub(crate) profiles: BTreeMap<String, ProfileConfig>,
    pub(crate) log: LogConfig,
}
