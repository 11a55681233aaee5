//! The tools, prompts, resources and instructions of MCP servers: as each server lists them, as a profile combines them
//! (`view`), as code sees them (`index`), and as they are stored for servers that do not run (`store`).

mod cache;
mod index;
pub(crate) mod search;
mod store;
mod view;

use std::borrow::Cow;
use std::collections::BTreeSet;

use ringfence_core::hidden_text::escape_line;
use ringfence_mcp::sanitize;
use ringfence_mcp::upstream::{Upstream, UpstreamError};
use serde::Serialize;
use serde_json::Value;

pub(crate) use cache::{CatalogueCache, Revision};
pub(crate) use index::Candidate;
pub use index::{KnownServer, KnownServers};
pub(crate) use store::CatalogueStore;
pub(crate) use view::{Member, Route, View, uri_matches};

/// The lists of a server in its own order, and its instructions. Hidden characters in them are escaped.
#[derive(Debug, Default, Clone, PartialEq)]
pub(crate) struct Catalogue {
    pub(crate) tools: Vec<Value>,
    pub(crate) resources: Vec<Value>,
    pub(crate) templates: Vec<Value>,
    pub(crate) prompts: Vec<Value>,
    pub(crate) instructions: Option<String>,
}

/// The items of a server that are not offered, because a person has not accepted them.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Withheld {
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub(crate) tools: BTreeSet<String>,
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub(crate) prompts: BTreeSet<String>,
    /// By their URIs.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub(crate) resources: BTreeSet<String>,
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub(crate) resource_templates: BTreeSet<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) instructions: bool,
}

/// Maximum length of a rejected name in the log.
const MAX_NAME_CHARS: usize = 128;

/// A list that servers may change while they run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum ListKind {
    Tools,
    Resources,
    Prompts,
}

impl ListKind {
    pub(crate) const ALL: [Self; 3] = [Self::Tools, Self::Resources, Self::Prompts];

    /// The notification with which a server announces a change.
    pub(crate) fn notification(self) -> &'static str {
        match self {
            Self::Tools => "notifications/tools/list_changed",
            Self::Resources => "notifications/resources/list_changed",
            Self::Prompts => "notifications/prompts/list_changed",
        }
    }

    /// The capability of a server that has this list.
    pub(crate) fn capability(self) -> &'static str {
        match self {
            Self::Tools => "tools",
            Self::Resources => "resources",
            Self::Prompts => "prompts",
        }
    }

    /// The filter with which a client of the modern era subscribes to changes.
    pub(crate) fn filter(self) -> &'static str {
        match self {
            Self::Tools => "toolsListChanged",
            Self::Resources => "resourcesListChanged",
            Self::Prompts => "promptsListChanged",
        }
    }
}

impl Catalogue {
    /// Reads all lists that the server declares.
    pub(crate) async fn read(upstream: &Upstream) -> Result<Self, UpstreamError> {
        let instructions =
            upstream.description()["instructions"].as_str().map(|text| sanitize::text(text).into_owned());
        let mut catalogue = Self { instructions, ..Self::default() };
        for kind in ListKind::ALL {
            catalogue.refresh(upstream, kind).await?;
        }
        Ok(catalogue)
    }

    /// Reads one list again.
    pub(crate) async fn refresh(&mut self, upstream: &Upstream, kind: ListKind) -> Result<(), UpstreamError> {
        if upstream.description()["capabilities"].get(kind.capability()).is_none() {
            return Ok(());
        }
        match kind {
            ListKind::Tools => self.tools = valid_items(upstream.list("tools/list", "tools").await?, "name"),
            ListKind::Prompts => self.prompts = valid_items(upstream.list("prompts/list", "prompts").await?, "name"),
            ListKind::Resources => {
                self.resources = valid_items(or_empty(upstream.list("resources/list", "resources").await)?, "uri");
                let templates = or_empty(upstream.list("resources/templates/list", "resourceTemplates").await)?;
                self.templates = valid_items(templates, "uriTemplate");
            }
        }
        Ok(())
    }
}

/// Returns the items that can be offered: objects with a name in `key` without hidden characters and line breaks. A
/// sanitized name would not be the one that the server knows, and could be that of another item.
fn valid_items(items: Vec<Value>, key: &str) -> Vec<Value> {
    let mut valid = Vec::with_capacity(items.len());
    let mut rejected = Vec::new();
    for mut item in items {
        let Some(name) = item.get(key).and_then(Value::as_str).filter(|name| !name.is_empty()) else { continue };
        if let Cow::Owned(escaped) = escape_line(name) {
            rejected.push(escaped);
            continue;
        }
        sanitize::list_item(&mut item, key);
        valid.push(item);
    }
    if let Some(first) = rejected.first() {
        let first: String = first.chars().take(MAX_NAME_CHARS).collect();
        let count = rejected.len();
        tracing::warn!("{count} items of a server are not offered because their {key} has hidden characters: {first}");
    }
    valid
}

/// A server with the `resources` capability need not have both lists.
fn or_empty(list: Result<Vec<Value>, UpstreamError>) -> Result<Vec<Value>, UpstreamError> {
    match list {
        Err(UpstreamError::Rpc(_)) => Ok(Vec::new()),
        list => list,
    }
}

pub(crate) fn name_of(item: &Value) -> &str {
    item["name"].as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn items_without_a_name_are_rejected() {
        let listed = vec![
            json!("x"),
            json!(["name"]),
            json!(null),
            json!({"name": 7}),
            json!({"name": ""}),
            json!({"name": "a"}),
        ];
        assert_eq!(valid_items(listed, "name"), [json!({"name": "a"})]);
    }

    #[test]
    fn items_with_hidden_characters_in_their_names_are_rejected_and_others_sanitized() {
        let listed = vec![
            json!({"name": "a\u{200b}"}),
            json!({"name": "a\u{e0041}"}),
            json!({"name": "a\nb"}),
            json!({"name": "a", "description": "x\u{202e}"}),
            json!({"name": "größe"}),
        ];
        let expected = [json!({"name": "a", "description": "x\\u{202e}"}), json!({"name": "größe"})];
        assert_eq!(valid_items(listed, "name"), expected);
    }
}
