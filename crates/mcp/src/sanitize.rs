//! Escapes hidden characters in messages of servers before they reach a model, a person or a log.
//!
//! Lists are cleaned when they are read, results when they are forwarded. `structuredContent`, `_meta` and binary data
//! are for programs and stay unchanged, like everything that code in a sandbox receives. The order of keys and unknown
//! fields are preserved.

use std::borrow::Cow;

use ringfence_core::hidden_text::{escape, escape_content};
use serde_json::{Map, Value};

use crate::rpc::RpcError;

/// Fields of content with base64 or with data for programs.
const EXACT: [&str; 4] = ["data", "blob", "_meta", "structuredContent"];

type Escape = fn(&str) -> Cow<'_, str>;

/// Cleans an item of a list, or a server's `initialize` result: every string and every field name. `identifier` is the field
/// that identifies the item in calls; it stays unchanged.
pub fn list_item(item: &mut Value, identifier: &str) {
    let Value::Object(fields) = item else { return };
    clean_keys(fields, escape);
    for (_, value) in fields.iter_mut().filter(|(key, _)| *key != identifier && *key != "_meta") {
        clean(value, escape, &["_meta"], true);
    }
}

/// Cleans one text of a list.
pub fn text(text: &str) -> Cow<'_, str> {
    escape(text)
}

/// Cleans the result of a request.
pub fn result(method: &str, result: &mut Value) {
    let fields: &[&str] = match method {
        "tools/call" => &["content", "inputRequests"],
        "prompts/get" => &["description", "messages", "inputRequests"],
        "resources/read" => &["contents", "inputRequests"],
        "completion/complete" => &["completion"],
        _ => return,
    };
    for field in fields {
        if let Some(value) = result.get_mut(*field) {
            content(value);
        }
    }
}

/// Cleans the other messages of a server: log messages, progress, requests to the client.
pub fn message(params: &mut Value) {
    clean(params, escape_content, &["_meta"], false);
}

fn content(value: &mut Value) {
    clean(value, escape_content, &EXACT, false);
}

pub fn error(error: &mut RpcError) {
    if let Cow::Owned(clean) = escape_content(&error.message) {
        error.message = clean;
    }
    if let Some(data) = &mut error.data {
        message(data);
    }
}

fn clean(value: &mut Value, escape: Escape, exact: &[&str], has_keys: bool) {
    match value {
        Value::String(text) => {
            if let Cow::Owned(clean) = escape(text) {
                *text = clean;
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| clean(item, escape, exact, has_keys)),
        Value::Object(fields) => {
            if has_keys {
                clean_keys(fields, escape);
            }
            for (_, value) in fields.iter_mut().filter(|(key, _)| !exact.contains(&key.as_str())) {
                clean(value, escape, exact, has_keys);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Cleans field names if necessary. If two names become equal, the first field is used.
fn clean_keys(fields: &mut Map<String, Value>, escape: Escape) {
    if fields.keys().all(|key| matches!(escape(key), Cow::Borrowed(_))) {
        return;
    }
    for (key, value) in std::mem::take(fields) {
        fields.entry(escape(&key).into_owned()).or_insert(value);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn list_items_are_clean_in_every_text() {
        let mut tool = json!({
            "name": "a\u{202e}",
            "title": "t\u{e0041}",
            "description": "d\u{1b}[2J",
            "inputSchema": {"properties": {"p\u{200b}": {"description": "x\u{2066}", "enum": ["\u{feff}"]}}},
            "x-unknown": [{"z": "\u{9b}", "a": 1.50}],
            "_meta": {"exact": "\u{202e}"},
        });
        list_item(&mut tool, "name");
        let expected = json!({
            "name": "a\u{202e}",
            "title": "t\\u{e0041}",
            "description": "d\\u{1b}[2J",
            "inputSchema": {"properties": {"p\\u{200b}": {"description": "x\\u{2066}", "enum": ["\\u{feff}"]}}},
            "x-unknown": [{"z": "\\u{9b}", "a": 1.50}],
            "_meta": {"exact": "\u{202e}"},
        });
        assert_eq!(tool.to_string(), expected.to_string());
    }

    #[test]
    fn results_are_clean_where_a_model_reads_them_and_exact_for_programs() {
        let mut response = json!({
            "content": [
                {"type": "text", "text": "a\u{202e}b\u{200b}", "x": 1},
                {"type": "resource", "resource": {"uri": "u:1", "text": "\u{e0041}", "blob": "AA=="}},
                {"type": "image", "data": "AA\u{202e}==", "mimeType": "image/png"},
            ],
            "structuredContent": {"text": "\u{202e}"},
            "_meta": {"m": "\u{1b}"},
            "isError": true,
        });
        result("tools/call", &mut response);
        let expected = json!({
            "content": [
                {"type": "text", "text": "a\\u{202e}b\u{200b}", "x": 1},
                {"type": "resource", "resource": {"uri": "u:1", "text": "\\u{e0041}", "blob": "AA=="}},
                {"type": "image", "data": "AA\u{202e}==", "mimeType": "image/png"},
            ],
            "structuredContent": {"text": "\u{202e}"},
            "_meta": {"m": "\u{1b}"},
            "isError": true,
        });
        assert_eq!(response.to_string(), expected.to_string());
        for (method, field) in
            [("prompts/get", "messages"), ("resources/read", "contents"), ("completion/complete", "completion")]
        {
            let mut response = json!({field: [{"text": "\u{202e}"}]});
            result(method, &mut response);
            assert_eq!(response[field][0]["text"], "\\u{202e}", "{method}");
        }
    }

    #[test]
    fn errors_are_clean() {
        let mut failed = RpcError::new(-32000, "no\u{1b}]0;x\u{7}").with_data(json!({"why": "\u{202e}"}));
        error(&mut failed);
        assert_eq!(failed.message, "no\\u{1b}]0;x\\u{7}");
        assert_eq!(failed.data, Some(json!({"why": "\\u{202e}"})));
    }
}
