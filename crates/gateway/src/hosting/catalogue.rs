//! What one server offers, as it says it.

use serde_json::Value;

use crate::upstream::{Upstream, UpstreamError};

/// The lists of a server, each in its own order.
#[derive(Debug, Default, Clone, PartialEq)]
pub(crate) struct Catalogue {
    pub(crate) tools: Vec<Value>,
    pub(crate) resources: Vec<Value>,
    pub(crate) templates: Vec<Value>,
    pub(crate) prompts: Vec<Value>,
}

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
        let mut catalogue = Self::default();
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
            Kind::Tools => self.tools = with(upstream.list("tools/list", "tools").await?, "name"),
            Kind::Prompts => self.prompts = with(upstream.list("prompts/list", "prompts").await?, "name"),
            Kind::Resources => {
                self.resources = with(or_none(upstream.list("resources/list", "resources").await)?, "uri");
                let templates = or_none(upstream.list("resources/templates/list", "resourceTemplates").await)?;
                self.templates = with(templates, "uriTemplate");
            }
        }
        Ok(())
    }
}

/// Those that are what they should be: whatever else a server lists cannot be offered, nor written into.
fn with(items: Vec<Value>, key: &str) -> Vec<Value> {
    let is_named = |item: &Value| item.get(key).and_then(Value::as_str).is_some_and(|name| !name.is_empty());
    items.into_iter().filter(is_named).collect()
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
        assert_eq!(with(listed, "name"), [json!({"name": "a"})]);
    }
}
