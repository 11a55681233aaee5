//! `[code]`.

use schemars::JsonSchema;
use serde::Deserialize;

use super::units::{ByteSize, Count, Seconds};

/// Code that calls the tools of MCP servers: the tool `run_python`.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct CodeConfig {
    /// The time limit of a `run_python` call, unless the request sets one.
    pub(crate) timeout_s: Option<Seconds>,
    /// Maximum time limit that a `run_python` request may set.
    pub(crate) max_timeout_s: Option<Seconds>,
    /// The memory limit of its session.
    pub(crate) memory: Option<ByteSize>,
    /// Maximum number of processes and threads of its session.
    pub(crate) pids: Option<u32>,
    pub(crate) cpus: Option<f64>,
    /// The template of its session, which must be a Python template.
    pub(crate) template: Option<String>,
    /// The format of its results.
    pub(crate) output_mode: Option<OutputMode>,
    /// Maximum number of concurrent calls from one session to one server.
    pub(crate) calls_per_server: Option<Count>,
    /// The time limit of a tool call from code, unless the code sets one.
    pub(crate) call_timeout_s: Option<Seconds>,
}

/// The format of results.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum OutputMode {
    /// Text without empty or redundant parts.
    #[default]
    Compact,
    /// One block in the TOON notation.
    Toon,
}
