//! Content for MCP clients: the content blocks of tool results and the contents of resources.
//!
//! The types cover what this server sends and no more. They are converted to JSON by value, because a block may have
//! megabytes.

use serde_json::{Map, Value};

/// One block in the `content` of a tool result.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ContentBlock {
    Text(String),
    /// `data` is base64.
    Image {
        data: String,
        mime_type: String,
    },
    Resource(ResourceContents),
}

/// The contents of a resource, read or embedded in a tool result.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ResourceContents {
    uri: String,
    mime_type: String,
    body: ResourceBody,
}

#[derive(Debug, Clone, PartialEq)]
enum ResourceBody {
    Text(String),
    /// In base64.
    Blob(String),
}

impl ContentBlock {
    pub(crate) fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    pub(crate) fn image(data: impl Into<String>, mime_type: impl Into<String>) -> Self {
        Self::Image { data: data.into(), mime_type: mime_type.into() }
    }
}

impl ResourceContents {
    pub(crate) fn text(uri: impl Into<String>, mime_type: impl Into<String>, text: impl Into<String>) -> Self {
        Self { uri: uri.into(), mime_type: mime_type.into(), body: ResourceBody::Text(text.into()) }
    }

    /// Creates contents from base64.
    pub(crate) fn blob(uri: impl Into<String>, mime_type: impl Into<String>, base64: impl Into<String>) -> Self {
        Self { uri: uri.into(), mime_type: mime_type.into(), body: ResourceBody::Blob(base64.into()) }
    }
}

impl From<ContentBlock> for Value {
    fn from(block: ContentBlock) -> Self {
        match block {
            ContentBlock::Text(text) => object([("type", "text".into()), ("text", text.into())]),
            ContentBlock::Image { data, mime_type } => {
                object([("type", "image".into()), ("data", data.into()), ("mimeType", mime_type.into())])
            }
            ContentBlock::Resource(contents) => object([("type", "resource".into()), ("resource", contents.into())]),
        }
    }
}

impl From<ResourceContents> for Value {
    fn from(ResourceContents { uri, mime_type, body }: ResourceContents) -> Self {
        let (key, body) = match body {
            ResourceBody::Text(text) => ("text", text),
            ResourceBody::Blob(base64) => ("blob", base64),
        };
        object([("uri", uri.into()), ("mimeType", mime_type.into()), (key, body.into())])
    }
}

fn object<const N: usize>(fields: [(&str, Value); N]) -> Value {
    let mut object = Map::with_capacity(N);
    object.extend(fields.map(|(key, value)| (key.to_owned(), value)));
    Value::Object(object)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_have_the_fields_of_mcp() {
        let text = ResourceContents::text("a:b", "text/html", "<b>");
        let blob = ResourceContents::blob("a:b", "application/pdf", "QQ==");
        let blocks = [
            ContentBlock::text("hello"),
            ContentBlock::image("QQ==", "image/png"),
            ContentBlock::Resource(text),
            ContentBlock::Resource(blob),
        ];
        insta::assert_snapshot!(blocks.map(|block| Value::from(block).to_string()).join("\n"), @r#"
        {"type":"text","text":"hello"}
        {"type":"image","data":"QQ==","mimeType":"image/png"}
        {"type":"resource","resource":{"uri":"a:b","mimeType":"text/html","text":"<b>"}}
        {"type":"resource","resource":{"uri":"a:b","mimeType":"application/pdf","blob":"QQ=="}}
        "#);
    }
}
