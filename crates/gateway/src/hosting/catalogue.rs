//! What one server offers, as it says it.

use std::borrow::Cow;

use ringfence_core::hidden_text::escape_line;
use serde_json::Value;

use crate::clean;
use crate::upstream::{Upstream, UpstreamError};

/// The lists of a server, each in its own order, and its instructions. Hidden characters in them are escaped.
#[derive(Debug, Default, Clone, PartialEq)]
pub(crate) struct Catalogue {
    pub(crate) tools: Vec<Value>,
    pub(crate) resources: Vec<Value>,
    pub(crate) templates: Vec<Value>,
    pub(crate) prompts: Vec<Value>,
    pub(crate) instructions: Option<String>,
}

/// Maximum length of a rejected name in the log.
const MAX_NAME_CHARS: usize = 128;

/// A part of a catalogue that changes by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Tools,
    Resources,
    Prompts,
}

impl Kind {
    pub(crate) const ALL: [Self; 3] = [Self::Tools, Self::Resources, Self::Prompts];

    /// The notification by which a server says that it has changed.
    pub(crate) fn notification(self) -> &'static str {
        match self {
            Self::Tools => "notifications/tools/list_changed",
            Self::Resources => "notifications/resources/list_changed",
            Self::Prompts => "notifications/prompts/list_changed",
        }
    }

    /// Its name among the capabilities.
    pub(crate) fn capability(self) -> &'static str {
        match self {
            Self::Tools => "tools",
            Self::Resources => "resources",
            Self::Prompts => "prompts",
        }
    }

    /// What a client of the modern era asks for to be told.
    pub(crate) fn filter(self) -> &'static str {
        match self {
            Self::Tools => "toolsListChanged",
            Self::Resources => "resourcesListChanged",
            Self::Prompts => "promptsListChanged",
        }
    }
}

impl Catalogue {
    /// Reads all that the server says it has.
    pub(crate) async fn read(upstream: &Upstream) -> Result<Self, UpstreamError> {
        let instructions = upstream.about()["instructions"].as_str().map(|text| clean::text(text).into_owned());
        let mut catalogue = Self { instructions, ..Self::default() };
        for kind in Kind::ALL {
            catalogue.refresh(upstream, kind).await?;
        }
        Ok(catalogue)
    }

    /// Reads one part anew.
    pub(crate) async fn refresh(&mut self, upstream: &Upstream, kind: Kind) -> Result<(), UpstreamError> {
        if upstream.about()["capabilities"].get(kind.capability()).is_none() {
            return Ok(());
        }
        match kind {
            Kind::Tools => self.tools = offered(upstream.list("tools/list", "tools").await?, "name"),
            Kind::Prompts => self.prompts = offered(upstream.list("prompts/list", "prompts").await?, "name"),
            Kind::Resources => {
                self.resources = offered(or_none(upstream.list("resources/list", "resources").await)?, "uri");
                let templates = or_none(upstream.list("resources/templates/list", "resourceTemplates").await)?;
                self.templates = offered(templates, "uriTemplate");
            }
        }
        Ok(())
    }
}

/// The items that can be offered: objects with a name in `key`, which has no hidden characters and no line breaks. A
/// cleaned name would not be the one that the server knows, and could be that of another item.
pub(super) fn offered(items: Vec<Value>, key: &str) -> Vec<Value> {
    let mut kept = Vec::with_capacity(items.len());
    let mut left_out = Vec::new();
    for mut item in items {
        let Some(name) = item.get(key).and_then(Value::as_str).filter(|name| !name.is_empty()) else { continue };
        if let Cow::Owned(shown) = escape_line(name) {
            left_out.push(shown);
            continue;
        }
        clean::listed(&mut item, key);
        kept.push(item);
    }
    if let Some(first) = left_out.first() {
        let first: String = first.chars().take(MAX_NAME_CHARS).collect();
        let count = left_out.len();
        tracing::warn!("{count} items of a server are not offered because their {key} has hidden characters: {first}");
    }
    kept
}

/// A server that has resources need not have both kinds.
fn or_none(list: Result<Vec<Value>, UpstreamError>) -> Result<Vec<Value>, UpstreamError> {
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
    fn what_is_no_item_is_left_out() {
        let listed = vec![
            json!("x"),
            json!(["name"]),
            json!(null),
            json!({"name": 7}),
            json!({"name": ""}),
            json!({"name": "a"}),
        ];
        assert_eq!(offered(listed, "name"), [json!({"name": "a"})]);
    }

    #[test]
    fn items_with_hidden_characters_in_their_names_are_left_out_and_others_cleaned() {
        let listed = vec![
            json!({"name": "a\u{200b}"}),
            json!({"name": "a\u{e0041}"}),
            json!({"name": "a\nb"}),
            json!({"name": "a", "description": "x\u{202e}"}),
            json!({"name": "größe"}),
        ];
        let expected = [json!({"name": "a", "description": "x\\u{202e}"}), json!({"name": "größe"})];
        assert_eq!(offered(listed, "name"), expected);
    }
}
