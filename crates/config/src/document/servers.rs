//! `[servers.NAME]`: an entry in the `mcpServers` format of MCP clients, written in TOML.
//!
//! These types only reject unknown keys and wrong types. `ringfence_entries` checks the values, as for entries from any
//! other source. Unknown keys in `box` are allowed here: `ringfence_entries` reports them as warnings.

use std::collections::BTreeMap;

use ringfence_entries::AllowEntry;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// An MCP server: a program to host, or a remote server to connect to.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ServerEntryConfig {
    /// `stdio` for a command; `http`, `sse`, `websocket` or `remote` for a URL.
    #[serde(skip_serializing_if = "Option::is_none", alias = "type", alias = "transport")]
    pub(crate) mode: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) enable: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) description: Option<String>,
    /// The program to start, or a list of the program and its first arguments.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) command: Option<CommandConfig>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) args: Vec<String>,
    /// Environment variables of the program; `${VAR}` is expanded when it starts.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) env: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cwd: Option<String>,
    /// If false, the program runs on the host without any isolation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) sandbox: Option<bool>,
    /// The sandbox of the program.
    #[serde(skip_serializing_if = "Option::is_none", rename = "box")]
    pub(crate) sandbox_settings: Option<BoxConfig>,
    /// The URL of a remote server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) url: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) headers: BTreeMap<String, String>,
    /// Timeout of a connection and of a response, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) timeout: Option<f64>,
    /// Maximum time between two events of an event stream, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) sse_read_timeout: Option<f64>,
}

#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum CommandConfig {
    Program(String),
    List(Vec<String>),
}

/// The raw key `box`, which `ringfence_entries` parses and checks.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(transparent)]
pub(crate) struct BoxConfig(BTreeMap<String, toml::Value>);

impl JsonSchema for BoxConfig {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "BoxConfig".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "The sandbox of one server.",
            "type": "object",
            "properties": {
                "image": {"type": "string", "description": "A directory with a root file system, instead of /usr of the host."},
                "network": {"enum": ["on", "off", true, false], "description": "Whether the installation of dependencies may use the network."},
                "allow": {"type": "array", "items": generator.subschema_for::<AllowEntry>(), "description": "Hosts that the server may connect to."},
                "secrets": {"type": "array", "items": {"type": "string"}, "description": "The secrets of the server: names of [secrets.NAME]."},
                "host_path": {"type": "string", "description": "The directory of the host that the server works on."},
                "host_path_mode": {"enum": ["ro", "rw"]},
                "env": {"type": "object", "additionalProperties": {"type": "string"}},
                "startup_timeout_sec": {"type": "integer", "minimum": 1, "maximum": 86400},
                "cpus": {"type": "number", "minimum": 0.01, "maximum": 1024},
                "memory_mb": {"type": "integer", "minimum": 16, "maximum": 1_048_576},
                "pids_limit": {"type": "integer", "minimum": 2, "maximum": 4_194_304},
                "read_only_rootfs": {"type": "boolean"},
                "shared": {"type": "boolean", "description": "Run in one sandbox together with all other servers that set this."},
            },
        })
    }
}
