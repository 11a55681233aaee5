//! The formats of client files: each is converted to entries in the `mcpServers` format.

mod claude_code;
mod codex;
mod continue_dev;
mod goose;
mod opencode;
mod zed;

use std::path::PathBuf;

use serde_json::{Map, Value};

use super::placeholders;

/// The format of a client's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    /// A table of entries at this path of keys.
    Table(&'static [&'static str]),
    /// `mcpServers`, with `$VAR` for variables.
    DollarVariables,
    /// A table under one of the usual keys, a single server, or a bare table of servers.
    AnyTable,
    /// The same, where all keys have the meaning that they have for ringfence, such as `timeout`.
    Ringfence,
    ClaudeCode,
    OpenCode,
    Codex,
    Zed,
    Goose,
    Continue,
}

/// The reason why a server or file is not imported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkipReason {
    pub message: String,
    pub hint: Option<String>,
}

impl SkipReason {
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), hint: None }
    }

    pub(super) fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }
}

/// One server of a document.
pub(super) struct Item {
    pub(super) name: String,
    pub(super) entry: Result<Value, SkipReason>,
    /// The project of the server, if the document names one.
    pub(super) project: Option<PathBuf>,
    /// Settings that are lost by the import.
    pub(super) notes: Vec<String>,
}

impl Item {
    fn new(name: impl Into<String>, entry: Value) -> Self {
        Self { name: name.into(), entry: Ok(entry), project: None, notes: Vec::new() }
    }

    fn skipped(name: impl Into<String>, reason: SkipReason) -> Self {
        Self { name: name.into(), entry: Err(reason), project: None, notes: Vec::new() }
    }
}

impl Format {
    /// Returns the servers of a document. `stem` is the name of its file, which is used for servers without a name.
    pub(super) fn items(self, document: &Value, stem: &str) -> Result<Vec<Item>, SkipReason> {
        match self {
            Self::Table(path) => table(document, path),
            Self::DollarVariables => {
                let mut items = table(document, &["mcpServers"])?;
                items.iter_mut().flat_map(|item| &mut item.entry).for_each(placeholders::brace_dollars);
                Ok(items)
            }
            Self::AnyTable | Self::Ringfence => any_table(document, stem),
            Self::ClaudeCode => claude_code::items(document),
            Self::OpenCode => opencode::items(document),
            Self::Codex => codex::items(document),
            Self::Zed => zed::items(document),
            Self::Goose => goose::items(document),
            Self::Continue => continue_dev::items(document, stem),
        }
    }
}

/// Returns the entries at a path of keys. A document without these keys has no servers, which is not an error.
fn table(document: &Value, path: &[&str]) -> Result<Vec<Item>, SkipReason> {
    let mut value = document;
    for key in path {
        match value.get(key) {
            Some(inner) if !inner.is_null() => value = inner,
            _ => return Ok(Vec::new()),
        }
    }
    let entries = value.as_object().ok_or_else(|| SkipReason::new(format!("`{}` is not a table", path.join("."))))?;
    Ok(items_of(entries))
}

fn items_of(entries: &Map<String, Value>) -> Vec<Item> {
    entries.iter().map(|(name, entry)| Item::new(name, entry.clone())).collect()
}

/// Maximum length of the description of a file, which is copied to each of its servers.
const MAX_DESCRIPTION_CHARS: usize = 1000;

/// Returns the servers of a table under one of the usual keys, of a single server, or of a bare table of servers. Servers
/// of a table without a description have that of the file.
fn any_table(document: &Value, stem: &str) -> Result<Vec<Item>, SkipReason> {
    let Value::Object(map) = document else {
        return Err(SkipReason::new("the file is not a table"));
    };
    for key in ["mcpServers", "servers", "mcp_servers", "context_servers"] {
        if map.contains_key(key) {
            // Only Codex uses this key, and its entries have different keys.
            let items = if key == codex::KEY { codex::items(document) } else { table(document, &[key]) };
            return items.map(|items| with_description(items, document));
        }
    }
    let is_server =
        |value: &Value| ["command", "url", "serverUrl", "httpUrl"].iter().any(|key| value.get(key).is_some());
    if is_server(document) {
        let name = map.get("name").and_then(Value::as_str).unwrap_or(stem);
        return Ok(vec![Item::new(name, document.clone())]);
    }
    let is_description = |key: &str, value: &Value| key == "description" && value.is_string();
    let servers = map.iter().filter(|(key, value)| !is_description(key, value));
    let servers: Map<String, Value> = servers.map(|(key, value)| (key.clone(), value.clone())).collect();
    if !servers.is_empty() && servers.values().all(is_server) {
        return Ok(with_description(items_of(&servers), document));
    }
    Err(SkipReason::new("the file has no servers").hint("put the servers into a table `mcpServers`"))
}

/// Adds the description of a file to those of its servers that have none.
fn with_description(mut items: Vec<Item>, document: &Value) -> Vec<Item> {
    let Some(text) = document.get("description").and_then(Value::as_str) else { return items };
    let text: String = text.chars().take(MAX_DESCRIPTION_CHARS).collect();
    for item in &mut items {
        if let Ok(Value::Object(entry)) = &mut item.entry {
            entry.entry("description").or_insert_with(|| text.as_str().into());
        }
    }
    items
}

/// Returns the servers of a file in the `mcpServers` format, unchanged except for those of Codex.
pub(crate) fn server_values(document: &Value, stem: &str) -> Result<Vec<(String, Value)>, String> {
    if document.is_null() {
        return Ok(Vec::new());
    }
    let items = any_table(document, stem).map_err(|reason| reason.message)?;
    Ok(items.into_iter().filter_map(|item| Some((item.name, item.entry.ok()?))).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn descriptions(document: &Value) -> Vec<(String, Value)> {
        let values = server_values(document, "file").unwrap();
        values.into_iter().map(|(name, entry)| (name, entry["description"].clone())).collect()
    }

    #[test]
    fn description_of_a_file_is_the_default_of_its_servers() {
        let servers = json!({"a": {"command": "x"}, "b": {"command": "x", "description": "Own"}});
        let expected = [("a".to_owned(), json!("All")), ("b".to_owned(), json!("Own"))];
        for key in ["mcpServers", "servers", "mcp_servers"] {
            assert_eq!(descriptions(&json!({"description": "All", key: servers})), expected, "{key}");
        }
        let mut bare = servers.clone();
        bare["description"] = "All".into();
        assert_eq!(descriptions(&bare), expected);
        let single = json!({"command": "x", "description": "Own"});
        assert_eq!(descriptions(&single), [("file".to_owned(), json!("Own"))]);
        let named = json!({"description": {"command": "x"}});
        assert_eq!(descriptions(&named), [("description".to_owned(), Value::Null)]);
        let long = json!({"description": "é".repeat(5000), "mcpServers": {"a": {"command": "x"}}});
        assert_eq!(descriptions(&long)[0].1, "é".repeat(MAX_DESCRIPTION_CHARS));
    }

    #[test]
    fn table_of_codex_is_converted_and_box_settings_are_retained() {
        let entry = json!({
            "command": "x", "env_vars": ["TOKEN"], "startup_timeout_sec": 1.5, "tool_timeout_sec": 9, "box": {"memory_mb": 64},
        });
        let expected = json!({
            "command": "x", "env": {"TOKEN": "${TOKEN}"}, "box": {"memory_mb": 64, "startup_timeout_sec": 2},
        });
        let values = server_values(&json!({"model": "m", "mcp_servers": {"a": entry}}), "config").unwrap();
        assert_eq!(values, [("a".to_owned(), expected)]);
    }
}
