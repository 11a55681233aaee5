//! Servers in the configuration: `[servers.NAME]`, the shape of `mcpServers` in TOML.
//!
//! The keys are checked here, since a slip in one's own configuration is an error; what their values mean is decided by
//! the same reader as for every other place. Only in `box` unknown keys are let through, to be warned about.

use std::collections::BTreeMap;
use std::path::Path;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::error::ConfigError;
use super::values::Values;
use ringfence_entries::{EntryError, ServerEntry, Warning, entry_from_json, resolve_relative_paths};

/// A server that is hosted or reached.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ServerEntryConfig {
    /// stdio for a command; http, sse, websocket or remote for a url.
    #[serde(skip_serializing_if = "Option::is_none", alias = "type", alias = "transport")]
    pub mode: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enable: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The program to start, or a list of it and its first arguments.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<CommandConfig>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Variables of the program; `${VAR}` is expanded when it starts.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// False runs the program on the host, without any protection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<bool>,
    /// The walls around it.
    #[serde(skip_serializing_if = "Option::is_none", rename = "box")]
    pub walls: Option<BoxConfig>,
    /// Where a server elsewhere is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// For a connection and for an answer, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<f64>,
    /// Silence of an event stream, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sse_read_timeout: Option<f64>,
}

#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum CommandConfig {
    Program(String),
    List(Vec<String>),
}

/// Taken as it is: what is wrong with it is said by the reader of entries, and unknown keys are no error.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(transparent)]
pub struct BoxConfig(BTreeMap<String, toml::Value>);

impl JsonSchema for BoxConfig {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "BoxConfig".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "The walls around one server.",
            "type": "object",
            "properties": {
                "image": {"type": "string", "description": "A directory with a root file system, in place of the host's /usr."},
                "network": {"enum": ["on", "off", true, false], "description": "Whether the installation of dependencies may use the network."},
                "allow": {"type": "array", "items": {"type": "string"}, "description": "Hosts that the server itself may reach, as HOST[:PORT][+private]."},
                "host_path": {"type": "string", "description": "The directory of the host that the server works on."},
                "host_path_mode": {"enum": ["ro", "rw"]},
                "env": {"type": "object", "additionalProperties": {"type": "string"}},
                "startup_timeout_sec": {"type": "integer", "minimum": 1, "maximum": 86400},
                "cpus": {"type": "number", "minimum": 0.01, "maximum": 1024},
                "memory_mb": {"type": "integer", "minimum": 16, "maximum": 1_048_576},
                "pids_limit": {"type": "integer", "minimum": 2, "maximum": 4_194_304},
                "read_only_rootfs": {"type": "boolean"},
                "shared": {"type": "boolean", "description": "Live in one sandbox with the other servers that ask for it."},
            },
        })
    }
}

/// A server of the configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct ConfiguredServer {
    pub entry: ServerEntry,
    pub warnings: Vec<Warning>,
}

pub(super) fn resolve(
    servers: &BTreeMap<String, ServerEntryConfig>,
    values: &Values,
) -> Result<Vec<ConfiguredServer>, ConfigError> {
    servers.iter().map(|(name, given)| resolve_one(name, given, values)).collect()
}

fn resolve_one(name: &str, given: &ServerEntryConfig, values: &Values) -> Result<ConfiguredServer, ConfigError> {
    let wrong = |key: Option<&str>, problem: String, hint: Option<String>| {
        let mut path = vec!["servers", name];
        path.extend(key.into_iter().flat_map(|key| key.split('.')));
        ConfigError::Wrong { origin: values.origin(&path), problem: format!("servers.{name}: {problem}"), hint }
    };
    let mut value =
        serde_json::to_value(given).map_err(|error| wrong(None, format!("it cannot be read: {error}"), None))?;
    let base = values.origin(&["servers", name]).anchor(Path::new("."));
    resolve_relative_paths(&mut value, &base);
    let read = entry_from_json(name, &value).map_err(|error| {
        let key = match &error {
            EntryError::WrongType { key, .. } | EntryError::InvalidValue { key, .. } => Some(key.as_str()),
            _ => None,
        };
        wrong(key, error.to_string(), error.hints().into_iter().next())
    });
    let (entry, warnings) = read?;
    Ok(ConfiguredServer { entry, warnings })
}
