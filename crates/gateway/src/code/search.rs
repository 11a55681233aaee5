//! Searches tools by what they do. A search starts no server.

use ringfence_guest::HostResponse;
use serde_json::{Value, json};

use super::call_error::{CallError, ErrorKind};
use super::host_calls::{CodeRun, result};
use super::params::{Detail, SearchParams, parse};
use super::{Caller, CodeMode};
use crate::tools::MAX_FOUND_TOOLS;

/// A tool that matches a search.
pub(crate) struct FoundTool {
    pub(crate) server: String,
    pub(crate) server_alias: String,
    /// The entry of its server's `tools/list`.
    pub(crate) definition: Value,
    pub(crate) alias: String,
    pub(crate) score: f64,
}

impl FoundTool {
    pub(crate) fn name(&self) -> &str {
        crate::catalogue::name_of(&self.definition)
    }

    pub(crate) fn description(&self) -> &str {
        self.definition["description"].as_str().unwrap_or_default()
    }
}

impl CodeMode {
    pub(crate) async fn search(&self, caller: &Caller, query: &str, limit: usize) -> Vec<FoundTool> {
        let known = self.0.hosting.known_servers(&caller.profile).await;
        let found = known.search(query, limit).into_iter().filter_map(|hit| {
            let server = known.servers().get(hit.server)?;
            Some(FoundTool {
                server: server.name.clone(),
                server_alias: server.alias.clone(),
                definition: server.tools.get(hit.tool)?.clone(),
                alias: server.tool_aliases.get(hit.tool)?.clone(),
                score: hit.score,
            })
        });
        found.collect()
    }
}

impl CodeRun {
    pub(super) async fn search_tools(&self, params: &str) -> Result<HostResponse, CallError> {
        let SearchParams { query, limit, detail } = parse(params)?;
        if !(1..=MAX_FOUND_TOOLS).contains(&limit) {
            return Err(CallError::new(ErrorKind::Invalid, format!("limit must be between 1 and {MAX_FOUND_TOOLS}")));
        }
        let found = self.mode.search(&self.caller, &query, limit).await;
        let tools: Vec<Value> = found.iter().map(|tool| describe(tool, detail)).collect();
        Ok(result(&json!({"tools": tools})))
    }
}

fn describe(tool: &FoundTool, detail: Detail) -> Value {
    let mut described = json!({
        "server": tool.server,
        "server_alias": tool.server_alias,
        "tool": tool.name(),
        "alias": tool.alias,
        "description": tool.description(),
        "score": tool.score,
    });
    if detail == Detail::Full {
        described["inputSchema"] = tool.definition["inputSchema"].clone();
    }
    described
}
