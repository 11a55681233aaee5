//! Continue: a list under `mcpServers`, in older files under `experimental`, with secrets in double braces.

use serde_json::{Map, Value};

use super::super::placeholder;
use super::{Item, Reason, table};

pub(super) fn items(document: &Value, stem: &str) -> Result<Vec<Item>, Reason> {
    let list = document
        .get("mcpServers")
        .or_else(|| document.pointer("/experimental/modelContextProtocolServers"))
        .filter(|value| !value.is_null());
    match list {
        None => Ok(Vec::new()),
        Some(Value::Object(_)) => table(document, &["mcpServers"]),
        Some(Value::Array(entries)) => {
            Ok(entries.iter().enumerate().map(|(at, entry)| item(at, entry, stem)).collect())
        }
        Some(_) => Err(Reason::new("its `mcpServers` is neither a list nor a table")),
    }
}

fn item(at: usize, entry: &Value, stem: &str) -> Item {
    let unnamed = || if at == 0 { stem.to_owned() } else { format!("{stem}-{}", at + 1) };
    let name = entry.get("name").and_then(Value::as_str).map_or_else(unnamed, ToOwned::to_owned);
    let Some(mut fields) = entry.as_object().cloned() else {
        return Item::new(name, entry.clone());
    };
    if let Some(uses) = fields.get("uses").and_then(Value::as_str) {
        let why = format!("it is the block `{uses}` of Continue's hub, which says nothing of how to start it");
        return Item::skipped(name, Reason::new(why));
    }
    // The older shape has all of it within `transport`.
    if let Some(Value::Object(transport)) = fields.get("transport").cloned() {
        fields.shift_remove("transport");
        fields.extend(transport);
    }
    if let Some(Value::Object(mut options)) = fields.shift_remove("requestOptions")
        && let Some(headers) = options.shift_remove("headers")
    {
        fields.insert("headers".into(), headers);
    }
    for own in ["connectionTimeout", "faviconUrl", "sourceFile"] {
        fields.shift_remove(own);
    }
    let mut notes = Vec::new();
    if let Some(Value::String(key)) = fields.shift_remove("apiKey") {
        let headers = fields.entry("headers").or_insert_with(|| Value::Object(Map::new()));
        // What is no table is refused with the rest of the entry.
        if let Value::Object(headers) = headers {
            headers.insert("Authorization".into(), format!("Bearer {key}").into());
        }
    }
    let mut entry = Value::Object(fields);
    let mut has_secret = false;
    placeholder::for_each_text(&mut entry, &mut |text| {
        let plain = placeholder::secrets(text);
        has_secret |= plain != *text;
        *text = plain;
    });
    if has_secret {
        notes.push("its secrets are in Continue's own keeping: set them where ringfence is started".into());
    }
    Item { notes, ..Item::new(name, entry) }
}
