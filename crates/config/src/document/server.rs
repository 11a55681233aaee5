//! `[server]`.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer};

use super::units::{Count, Seconds};

/// The HTTP server.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ServerConfig {
    /// The IP address to listen on, or `localhost`.
    #[serde(deserialize_with = "deserialize_host")]
    #[schemars(with = "Option<String>")]
    pub(crate) host: Option<IpAddr>,
    /// The port to listen on; 0 selects a free port.
    pub(crate) port: Option<u16>,
    /// Allow requests from web pages of this host (CORS).
    pub(crate) enable_cors: Option<bool>,
    /// Without tokens, allow every user of this host to connect. If false, only root and the user who runs the server
    /// may connect.
    pub(crate) allow_local_users: Option<bool>,
    /// Host names besides those of loopback that are accepted in the headers Host and Origin.
    pub(crate) allowed_hosts: Option<Vec<String>>,
    /// The profile that is served at /mcp and on stdio: a name of [profiles.NAME], or `code`. By default, everything is
    /// served.
    pub(crate) profile: Option<String>,
    /// Maximum number of concurrent requests; further requests fail immediately and can be retried.
    pub(crate) max_concurrent_requests: Option<Count>,
    /// Maximum number of connections; further connections are refused immediately and can be retried.
    pub(crate) max_connections: Option<Count>,
    /// Maximum total time of a call, including the time in a queue and the start of a session or server.
    pub(crate) request_timeout_s: Option<Seconds>,
    /// Maximum time for running requests to finish after SIGTERM.
    pub(crate) drain_timeout_s: Option<Seconds>,
    /// The time after which your clients give up on a response. The server never waits that long: all other timeouts
    /// must be shorter.
    pub(crate) client_timeout_s: Option<Seconds>,
    /// Bearer tokens by the name of their principal. If there are any, every request needs one.
    pub(crate) tokens: BTreeMap<String, TokenConfig>,
}

/// The location of a token's secret: an environment variable or a file, never the configuration itself.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct TokenConfig {
    /// The environment variable that contains the secret.
    pub(crate) env: Option<String>,
    /// The file that contains the secret.
    pub(crate) file: Option<PathBuf>,
}

fn deserialize_host<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<IpAddr>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    text.map(|text| parse_host(&text)).transpose().map_err(serde::de::Error::custom)
}

/// Parses an IP address or `localhost`. Other names are refused, since their addresses can change.
pub fn parse_host(text: &str) -> Result<IpAddr, String> {
    if text.eq_ignore_ascii_case("localhost") {
        return Ok(IpAddr::from([127, 0, 0, 1]));
    }
    text.parse().map_err(|_| format!("`{text}` is neither an IP address nor `localhost`"))
}
