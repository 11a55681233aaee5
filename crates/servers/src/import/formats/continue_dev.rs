//! Continue: a list under `mcpServers`, in older files under `experimental`, with secrets in double braces.

use serde_json::{Map, Value};

use super::super::placeholders;
use super::{Item, SkipReason, table};

pub(super) fn items(document: &Value, stem: &str) -> Result<Vec<Item>, SkipReason> {
    let list = document
        .get("mcpServers")
        .or_else(|| document.pointer("/experimental/modelContextProtocolServers"))
        .filter(|value| !value.is_null());
    match list {
        None => Ok(Vec::new()),
        Some(Value::Object(_)) => table(document, &["mcpServers"]),
        Some(Value::Array(entries)) => {
            Ok(entries.iter().enumerate().map(|(index, entry)| item(index, entry, stem)).collect())
        }
        Some(_) => Err(SkipReason::new("`mcpServers` is neither a list nor a table")),
    }
}

fn item(index: usize, entry: &Value, stem: &str) -> Item {
    let unnamed = || if index == 0 { stem.to_owned() } else { format!("{stem}-{}", index + 1) };
    let name = entry.get("name").and_then(Value::as_str).map_or_else(unnamed, ToOwned::to_owned);
    let Some(mut fields) = entry.as_object().cloned() else {
        return Item::new(name, entry.clone());
    };
    if let Some(uses) = fields.get("uses").and_then(Value::as_str) {
        let message = format!("the server is the block `{uses}` of Continue's hub, and its command is not in the file");
        return Item::skipped(name, SkipReason::new(message));
    }
    // In older files, all keys are in `transport`.
    if let Some(Value::Object(transport)) = fields.get("transport").cloned() {
        fields.shift_remove("transport");
        fields.extend(transport);
    }
    if let Some(Value::Object(mut options)) = fields.shift_remove("requestOptions")
        && let Some(headers) = options.shift_remove("headers")
    {
        fields.insert("headers".into(), headers);
    }
    for client_key in ["connectionTimeout", "faviconUrl", "sourceFile"] {
        fields.shift_remove(client_key);
    }
    let mut notes = Vec::new();
    if let Some(Value::String(key)) = fields.shift_remove("apiKey") {
        let headers = fields.entry("headers").or_insert_with(|| Value::Object(Map::new()));
        // Other types are refused when the entry is parsed.
        if let Value::Object(headers) = headers {
            headers.insert("Authorization".into(), format!("Bearer {key}").into());
        }
    }
    let mut entry = Value::Object(fields);
    let mut has_secret = false;
    placeholders::for_each_text(&mut entry, &mut |text| {
        let converted = placeholders::convert_secrets(text);
        has_secret |= converted != *text;
        *text = converted;
    });
    if has_secret {
        notes.push("Continue stores the secrets of this server: set them in the environment of ringfence".into());
    }
    Item { notes, ..Item::new(name, entry) }
}
