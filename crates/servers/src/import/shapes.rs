//! From a client's document to entries in the one shape that is read.

mod claude_code;
mod codex;
mod continue_dev;
mod goose;
mod opencode;
mod zed;

use std::path::PathBuf;

use serde_json::{Map, Value};

use super::placeholder;

/// How a client arranges its servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// A table of entries under these keys, one in the other.
    Table(&'static [&'static str]),
    /// `mcpServers`, with `$VAR` for variables.
    Dollars,
    /// Whatever a person may put in a file of servers.
    Loose,
    /// The same, with the keys of ours: `timeout` is what we call so.
    Own,
    ClaudeCode,
    OpenCode,
    Codex,
    Zed,
    Goose,
    Continue,
}

/// Why something is not imported, and what can be done about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reason {
    pub why: String,
    pub hint: Option<String>,
}

impl Reason {
    pub(super) fn new(why: impl Into<String>) -> Self {
        Self { why: why.into(), hint: None }
    }

    pub(super) fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }
}

/// One server of a document.
pub(super) struct Item {
    pub(super) name: String,
    pub(super) entry: Result<Value, Reason>,
    /// The project that it belongs to, if the document says so.
    pub(super) project: Option<PathBuf>,
    /// What is lost by importing it.
    pub(super) notes: Vec<String>,
}

impl Item {
    fn new(name: impl Into<String>, entry: Value) -> Self {
        Self { name: name.into(), entry: Ok(entry), project: None, notes: Vec::new() }
    }

    fn skipped(name: impl Into<String>, reason: Reason) -> Self {
        Self { name: name.into(), entry: Err(reason), project: None, notes: Vec::new() }
    }
}

impl Shape {
    /// The servers of a document. `stem` is the name of its file, for those that have no name of their own.
    pub(super) fn items(self, document: &Value, stem: &str) -> Result<Vec<Item>, Reason> {
        match self {
            Self::Table(path) => table(document, path),
            Self::Dollars => {
                let mut items = table(document, &["mcpServers"])?;
                items.iter_mut().flat_map(|item| &mut item.entry).for_each(placeholder::brace_dollars);
                Ok(items)
            }
            Self::Loose | Self::Own => loose(document, stem),
            Self::ClaudeCode => claude_code::items(document),
            Self::OpenCode => opencode::items(document),
            Self::Codex => codex::items(document),
            Self::Zed => zed::items(document),
            Self::Goose => goose::items(document),
            Self::Continue => continue_dev::items(document, stem),
        }
    }
}

/// The entries under some keys. A document without them has no servers, which is nothing to complain of.
fn table(document: &Value, path: &[&str]) -> Result<Vec<Item>, Reason> {
    let mut value = document;
    for key in path {
        match value.get(key) {
            Some(inner) if !inner.is_null() => value = inner,
            _ => return Ok(Vec::new()),
        }
    }
    let entries = value.as_object().ok_or_else(|| Reason::new(format!("its `{}` is not a table", path.join("."))))?;
    Ok(all(entries))
}

fn all(entries: &Map<String, Value>) -> Vec<Item> {
    entries.iter().map(|(name, entry)| Item::new(name, entry.clone())).collect()
}

/// A table of servers under one of the usual keys, one server alone, or a bare table of servers.
fn loose(document: &Value, stem: &str) -> Result<Vec<Item>, Reason> {
    let Value::Object(map) = document else {
        return Err(Reason::new("it is not a table"));
    };
    for key in ["mcpServers", "servers", "mcp_servers", "context_servers"] {
        if map.contains_key(key) {
            return table(document, &[key]);
        }
    }
    let is_server =
        |value: &Value| ["command", "url", "serverUrl", "httpUrl"].iter().any(|key| value.get(key).is_some());
    if is_server(document) {
        let name = map.get("name").and_then(Value::as_str).unwrap_or(stem);
        return Ok(vec![Item::new(name, document.clone())]);
    }
    if !map.is_empty() && map.values().all(is_server) {
        return Ok(all(map));
    }
    Err(Reason::new("there are no servers in it").hint("servers are looked for under `mcpServers`"))
}

/// The servers of a file in the `mcpServers` shape, as they are written.
pub(crate) fn server_values(document: &Value, stem: &str) -> Result<Vec<(String, Value)>, String> {
    if document.is_null() {
        return Ok(Vec::new());
    }
    let items = loose(document, stem).map_err(|reason| reason.why)?;
    Ok(items.into_iter().filter_map(|item| Some((item.name, item.entry.ok()?))).collect())
}
