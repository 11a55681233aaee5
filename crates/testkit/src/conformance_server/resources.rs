//! Resources: some with a fixed URI, and a template.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use rmcp::ErrorData;
use rmcp::model::{ReadResourceResult, Resource, ResourceTemplate};
use serde::Deserialize;
use serde_json::{Value, json};

use super::calls::complete;
use super::script::parse;

pub(super) static RESOURCES: LazyLock<Resources> =
    LazyLock::new(|| parse(include_str!("../../fixtures/conformance/resources.json")));

#[derive(Debug, Deserialize)]
pub(super) struct Resources {
    pub(super) fixed: Vec<Resource>,
    pub(super) templates: Vec<ResourceTemplate>,
    /// Contents of the fixed resources by URI.
    contents: BTreeMap<String, Value>,
    templated: Templated,
}

/// The resources of the template: their URIs consist of the prefix, an id and the suffix.
#[derive(Debug, Deserialize)]
struct Templated {
    prefix: String,
    suffix: String,
    contents: Value,
}

impl Resources {
    pub(super) fn read(&self, uri: &str) -> Result<ReadResourceResult, ErrorData> {
        let id = uri.strip_prefix(&self.templated.prefix).and_then(|rest| rest.strip_suffix(&self.templated.suffix));
        let contents = match (self.contents.get(uri), id) {
            (Some(contents), _) => contents,
            (None, Some(_)) => &self.templated.contents,
            (None, None) => {
                return Err(ErrorData::resource_not_found(format!("no resource {uri}"), Some(json!({"uri": uri}))));
            }
        };
        let mut contents = contents.clone();
        contents["uri"] = json!(uri);
        complete(&json!({"contents": [contents]}), &json!({"id": id}))
    }
}
