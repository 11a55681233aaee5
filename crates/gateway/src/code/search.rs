//! Finding tools by what they do, without starting anything.

use ringfence_guest::HostResponse;
use serde_json::{Value, json};

use super::failure::{CallError, ErrorKind};
use super::host_calls::{CodeRun, result};
use super::requests::{Detail, SearchParams, read};
use super::{Caller, CodeMode};
use crate::tools::MAX_FOUND_TOOLS;

/// A tool that was found.
pub(crate) struct Found {
    pub(crate) server: String,
    pub(crate) server_alias: String,
    /// As its server lists it.
    pub(crate) tool: Value,
    pub(crate) alias: String,
    pub(crate) score: f64,
}

impl Found {
    pub(crate) fn name(&self) -> &str {
        crate::catalogue::name_of(&self.tool)
    }

    pub(crate) fn description(&self) -> &str {
        self.tool["description"].as_str().unwrap_or_default()
    }
}

impl CodeMode {
    pub(crate) async fn search(&self, caller: &Caller, query: &str, limit: usize) -> Vec<Found> {
        let known = self.0.hosting.known_servers(&caller.profile).await;
        let found = known.search(query, limit).into_iter().filter_map(|hit| {
            let server = known.servers().get(hit.server)?;
            Some(Found {
                server: server.name.clone(),
                server_alias: server.alias.clone(),
                tool: server.tools.get(hit.tool)?.clone(),
                alias: server.tool_aliases.get(hit.tool)?.clone(),
                score: hit.score,
            })
        });
        found.collect()
    }
}

impl CodeRun {
    pub(super) async fn search_tools(&self, params: &str) -> Result<HostResponse, CallError> {
        let SearchParams { query, limit, detail } = read(params)?;
        if !(1..=MAX_FOUND_TOOLS).contains(&limit) {
            return Err(CallError::new(ErrorKind::Invalid, format!("limit is not between 1 and {MAX_FOUND_TOOLS}")));
        }
        let found = self.mode.search(&self.caller, &query, limit).await;
        let tools: Vec<Value> = found.iter().map(|found| describe(found, detail)).collect();
        Ok(result(&json!({"tools": tools})))
    }
}

fn describe(found: &Found, detail: Detail) -> Value {
    let mut described = json!({
        "server": found.server,
        "server_alias": found.server_alias,
        "tool": found.name(),
        "alias": found.alias,
        "description": found.description(),
        "score": found.score,
    });
    if detail == Detail::Full {
        described["inputSchema"] = found.tool["inputSchema"].clone();
    }
    described
}
