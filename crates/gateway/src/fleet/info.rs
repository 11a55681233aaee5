//! The description of a server for people and programs. Texts of the server are sanitized and limited.

use serde::Serialize;
use serde_json::Value;

use super::connect::{Link, ToolSummary};
use super::failure::{ServerFailure, sanitize};
use super::slot::Slot;
use super::state_machine::Status;

const MAX_TOOLS: usize = 4096;
const MAX_TEXT_BYTES: usize = 4096;
const MAX_STDERR_LINES: usize = 500;
const MAX_STDERR_BYTES: usize = 256 * 1024;

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct ServerInfo {
    pub(crate) name: String,
    pub(crate) uuid: String,
    pub(crate) mode: &'static str,
    pub(crate) enable: bool,
    pub(crate) description: Option<String>,
    pub(crate) status: Status,
    pub(crate) error: Option<ServerFailure>,
    /// The number of attempts after the first since the count was reset.
    pub(crate) retry_count: u8,
    /// The number of connections after the first.
    pub(crate) restart_count: u32,
    pub(crate) tool_count: usize,
    pub(crate) tools: Vec<ToolSummary>,
    pub(crate) sandbox_id: Option<String>,
    pub(crate) uptime_s: Option<u64>,
    pub(crate) usage: Value,
    /// The hosts that it was refused, one line each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) blocked: Vec<String>,
    /// Only if a single server is described.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) stderr: Option<Vec<String>>,
}

impl ServerInfo {
    pub(super) fn brief<L: Link>(slot: &Slot<L>) -> Self {
        let (entry, view) = (slot.entry(), slot.view.borrow().clone());
        let connection = view.connection.as_deref();
        let link = connection.map(|connection| &*connection.link);
        let failure = view.failure.as_deref().cloned();
        Self {
            name: entry.name.clone(),
            uuid: entry.uuid.clone(),
            mode: entry.transport.mode(),
            enable: entry.enable,
            description: entry.description.clone(),
            status: view.state.status(),
            error: failure.or_else(|| connection.and_then(super::slot::Connection::open_circuit)),
            retry_count: view.state.retries(),
            restart_count: view.restarts,
            tool_count: link.map_or(0, Link::tool_count),
            tools: link.map(tools).unwrap_or_default(),
            sandbox_id: link.and_then(Link::sandbox_id),
            uptime_s: connection.map(|connection| connection.connected_at.elapsed().as_secs()),
            usage: link.map_or(Value::Null, Link::usage),
            blocked: link.map(Link::blocked).unwrap_or_default(),
            stderr: None,
        }
    }

    pub(super) fn detailed<L: Link>(slot: &Slot<L>) -> Self {
        let view = slot.view.borrow().clone();
        let stderr = match &view.connection {
            Some(connection) => bounded_tail(connection.link.stderr_tail()),
            None => view.stderr.to_vec(),
        };
        Self { stderr: Some(stderr), ..Self::brief(slot) }
    }
}

fn tools<L: Link>(link: &L) -> Vec<ToolSummary> {
    let cut = |tool: ToolSummary| ToolSummary {
        name: sanitize(&tool.name, MAX_TEXT_BYTES),
        description: tool.description.map(|text| sanitize(&text, MAX_TEXT_BYTES)),
    };
    link.tools().into_iter().take(MAX_TOOLS).map(cut).collect()
}

/// Returns the last lines within the limits.
pub(super) fn bounded_tail(lines: Vec<String>) -> Vec<String> {
    let mut bytes = 0;
    let fits = |line: &&String| {
        bytes += line.len();
        bytes <= MAX_STDERR_BYTES
    };
    let count = lines.iter().rev().take(MAX_STDERR_LINES).take_while(fits).count();
    let from = lines.len() - count;
    lines.into_iter().skip(from).map(|line| sanitize(&line, MAX_STDERR_BYTES)).collect()
}
