//! `[hosting]`.

use schemars::JsonSchema;
use serde::Deserialize;

/// Further sources of MCP servers, and settings of all hosted servers.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct HostingConfig {
    /// Files in the `mcpServers` format of MCP clients; read again when they change.
    pub(crate) files: Option<Vec<String>>,
    /// Also host the servers in the user settings of MCP clients, without `ringfence server import`.
    pub(crate) import: Option<bool>,
    /// List the servers in the JSON files of `~/MCPs` without an import, and start each of them when it is used for the first time.
    pub(crate) discover: Option<bool>,
    /// Accept everything that a server offers at its first connection, as `ringfence server pin` does. Later changes
    /// are withheld until they are accepted.
    pub(crate) pin_on_first_use: Option<bool>,
    /// Hosts that installations may connect to besides the package registries that this machine uses, as
    /// `HOST[:PORT][+private]`.
    pub(crate) install_allow: Option<Vec<String>>,
}
