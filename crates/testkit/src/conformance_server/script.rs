//! Scripts: what the server does in a call, as data.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use rmcp::model::{ClientCapabilities, Prompt, Tool};
use serde::Deserialize;
use serde_json::Value;

/// The tools, in the order of the list.
pub(super) static TOOLS: LazyLock<Vec<ToolScript>> =
    LazyLock::new(|| parse(include_str!("../../fixtures/conformance/tools.json")));

pub(super) static PROMPTS: LazyLock<Vec<PromptScript>> =
    LazyLock::new(|| parse(include_str!("../../fixtures/conformance/prompts.json")));

#[derive(Debug, Deserialize)]
pub(super) struct ToolScript {
    pub(super) tool: Tool,
    #[serde(flatten)]
    pub(super) script: Script,
}

#[derive(Debug, Deserialize)]
pub(super) struct PromptScript {
    pub(super) prompt: Prompt,
    #[serde(flatten)]
    pub(super) script: Script,
}

/// The steps of a call, in the order of the fields. Strings may contain placeholders: `arguments` of the call,
/// `client_response` to `client_request`, and `responses` to the requests of `input_rounds` and tasks.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Script {
    /// The call fails if the client lacks these.
    pub(super) required_capabilities: Option<ClientCapabilities>,
    /// The list for which the server sends a notification of change.
    pub(super) list_change: Option<List>,
    pub(super) logs: Vec<String>,
    /// Sent only if the request itself asks for logs.
    pub(super) logs_on_request: Vec<String>,
    pub(super) progress: Vec<f64>,
    pub(super) delay_ms: u64,
    /// A request to the client during the call, for clients of the older era.
    pub(super) client_request: Option<Value>,
    /// Requests to the client in results after which it repeats the call, for clients of the newer era (SEP-2322).
    pub(super) input_rounds: Vec<BTreeMap<String, Value>>,
    /// Identify rounds by a `requestState` that the client returns.
    pub(super) uses_request_state: bool,
    /// Leave out requests for which the client has no capability.
    pub(super) only_supported_requests: bool,
    pub(super) task: Option<TaskScript>,
    pub(super) result: Value,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum List {
    Tools,
    Prompts,
}

/// The steps of a task, before its result.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct TaskScript {
    pub(super) support: TaskSupport,
    #[serde(default)]
    pub(super) duration_ms: u64,
    /// Name of the argument with further seconds.
    pub(super) seconds_argument: Option<String>,
    /// Requests to the client, all at the same time.
    #[serde(default)]
    pub(super) input_requests: BTreeMap<String, Value>,
    /// The task fails with this message instead of returning a result.
    pub(super) error: Option<String>,
}

/// Whether clients without tasks can call the tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum TaskSupport {
    Optional,
    Required,
}

pub(super) fn parse<T: serde::de::DeserializeOwned>(text: &str) -> T {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("invalid script: {error}"))
}
