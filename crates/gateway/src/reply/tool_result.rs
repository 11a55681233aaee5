//! The result of a tool call.

use serde_json::{Map, Value};

use crate::content::ContentBlock;

#[derive(Debug)]
pub(crate) struct ToolResult {
    pub(crate) content: Vec<ContentBlock>,
    /// An object with fields for programs: `structuredContent` in JSON.
    pub(crate) fields: Value,
    pub(crate) is_error: bool,
}

impl ToolResult {
    pub(super) fn success(content: Vec<ContentBlock>, fields: Value) -> Self {
        Self { content, fields, is_error: false }
    }

    /// Adds a line of the host to the first block, in a form that no text of a file has.
    pub(crate) fn add_notice(&mut self, notice: &str) {
        let line = format!("[… {notice} …]");
        match self.content.first_mut() {
            Some(ContentBlock::Text(text)) => {
                text.push('\n');
                text.push_str(&line);
            }
            _ => self.content.insert(0, ContentBlock::text(line)),
        }
    }

    /// Converts the result to the JSON of MCP. Moves its strings, which may have megabytes.
    pub(crate) fn into_json(self) -> Value {
        let mut json = Map::with_capacity(4); // with `resultType`, which is added for modern clients
        json.insert("content".into(), self.content.into_iter().map(Value::from).collect());
        json.insert("isError".into(), self.is_error.into());
        json.insert("structuredContent".into(), self.fields);
        Value::Object(json)
    }
}
