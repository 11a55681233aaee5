//! Headers that let intermediaries route a modern request without reading its body (SEP-2243).

use std::collections::HashMap;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use serde_json::Value;

use crate::upstream::era::Era;

/// Limits for the annotations of one schema; further ones are ignored.
const MAX_ANNOTATIONS: usize = 64;
const MAX_DEPTH: usize = 16;

/// For each tool, the arguments that its schema requires as headers: path of the argument, and name of the header.
pub(crate) type HeaderParameters = HashMap<String, Vec<(Vec<String>, HeaderName)>>;

pub(super) fn version(era: &Era) -> Option<HeaderValue> {
    HeaderValue::from_str(era.version()).ok()
}

/// Returns the headers of one request.
pub(super) fn for_request(
    method: &str,
    params: Option<&Value>,
    era: &Era,
    header_parameters: &HeaderParameters,
) -> HeaderMap {
    let mut headers = HeaderMap::new();
    if let Some(version) = version(era) {
        headers.insert(HeaderName::from_static("mcp-protocol-version"), version);
    }
    let mut put = |name: HeaderName, text: &str| {
        if let Ok(value) = HeaderValue::from_str(&encode_value(text)) {
            headers.insert(name, value);
        }
    };
    put(HeaderName::from_static("mcp-method"), method);
    let key = match method {
        "tools/call" | "prompts/get" => "name",
        "resources/read" | "resources/subscribe" | "resources/unsubscribe" => "uri",
        "tasks/get" | "tasks/update" | "tasks/cancel" => "taskId",
        _ => return headers,
    };
    let Some(params) = params else { return headers };
    let Some(name) = params.get(key).and_then(Value::as_str) else { return headers };
    put(HeaderName::from_static("mcp-name"), name);
    if method == "tools/call" {
        for (path, header) in header_parameters.get(name).into_iter().flatten() {
            let argument =
                path.iter().try_fold(params.get("arguments"), |value, key| value.map(|value| value.get(key)));
            if let Some(text) = argument.flatten().and_then(primitive_text) {
                put(header.clone(), &text);
            }
        }
    }
    headers
}

fn primitive_text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Bool(_) | Value::Number(_) => Some(value.to_string()),
        _ => None,
    }
}

/// Encodes text that is not valid in a header in Base64.
fn encode_value(text: &str) -> String {
    let is_plain = text.bytes().all(|byte| (0x20..=0x7e).contains(&byte))
        && text.trim_matches([' ', '\t']) == text
        && !(text.starts_with("=?base64?") && text.ends_with("?="));
    if is_plain { text.to_owned() } else { format!("=?base64?{}?=", BASE64_STANDARD.encode(text)) }
}

/// Collects the arguments that the schemas of these tools require as headers.
pub(crate) fn header_parameters(tools: &[Value]) -> HeaderParameters {
    let mut header_parameters = HeaderParameters::new();
    for tool in tools {
        let Some(name) = tool.get("name").and_then(Value::as_str) else { continue };
        let mut found = Vec::new();
        collect(tool.get("inputSchema"), &mut Vec::new(), &mut found);
        if !found.is_empty() {
            header_parameters.insert(name.to_owned(), found);
        }
    }
    header_parameters
}

fn collect(schema: Option<&Value>, path: &mut Vec<String>, found: &mut Vec<(Vec<String>, HeaderName)>) {
    let properties = schema.and_then(|schema| schema.get("properties")?.as_object());
    for (name, property) in properties.into_iter().flatten() {
        if found.len() >= MAX_ANNOTATIONS || path.len() >= MAX_DEPTH {
            return;
        }
        path.push(name.clone());
        let header = property.get("x-mcp-header").and_then(Value::as_str).filter(|header| !header.is_empty());
        let header = header.and_then(|header| HeaderName::from_bytes(format!("mcp-param-{header}").as_bytes()).ok());
        if let Some(header) = header {
            found.push((path.clone(), header));
        }
        collect(Some(property), path, found);
        path.pop();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn text(headers: &HeaderMap, name: &str) -> Option<String> {
        headers.get(name).map(|value| value.to_str().unwrap().to_owned())
    }

    #[test]
    fn call_has_headers_for_method_tool_and_annotated_arguments() {
        let tools = [json!({"name": "t", "inputSchema": {"properties": {
            "region": {"type": "string", "x-mcp-header": "Region"},
            "deep": {"properties": {"n": {"type": "integer", "x-mcp-header": "N"}}},
            "bad": {"type": "string", "x-mcp-header": "not a token"},
        }}})];
        let params = json!({"name": "t", "arguments": {"region": "zürich", "deep": {"n": 4}}});
        let era = Era::Modern("2026-07-28".into());
        let headers = for_request("tools/call", Some(&params), &era, &header_parameters(&tools));
        assert_eq!(text(&headers, "mcp-protocol-version").as_deref(), Some("2026-07-28"));
        assert_eq!(text(&headers, "mcp-method").as_deref(), Some("tools/call"));
        assert_eq!(text(&headers, "mcp-name").as_deref(), Some("t"));
        assert_eq!(text(&headers, "mcp-param-region").as_deref(), Some("=?base64?esO8cmljaA==?="));
        assert_eq!(text(&headers, "mcp-param-n").as_deref(), Some("4"));
        assert_eq!(headers.len(), 5);
    }

    #[test]
    fn every_text_becomes_a_valid_header_value() {
        for text in ["a\r\nb: c", " a", "=?base64?x?=", "\u{0}"] {
            assert!(HeaderValue::from_str(&encode_value(text)).is_ok() && encode_value(text).starts_with("=?base64?"));
        }
    }
}
