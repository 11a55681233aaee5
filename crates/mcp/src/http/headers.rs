//! Checks that the headers of a request agree with its body, so that intermediaries can rely on the headers (SEP-2243).

use axum::http::{HeaderMap, HeaderName};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use crate::era::{CAPABILITIES_KEY, MODERN_VERSION, VERSION_KEY, VERSIONS, declared_version};
use crate::rpc::RpcError;

const VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
const METHOD: HeaderName = HeaderName::from_static("mcp-method");
const NAME: HeaderName = HeaderName::from_static("mcp-name");

/// Checks the headers of a request or notification. `schema` returns the input schema of a tool.
pub(super) fn check(
    headers: &HeaderMap,
    method: &str,
    params: &Value,
    is_request: bool,
    schema: impl FnOnce(&str) -> Option<Value>,
) -> Result<(), RpcError> {
    let version = text(headers, &VERSION)?;
    if method == "initialize" && declared_version(params) != Some(MODERN_VERSION) {
        return check_initialize(headers, version, params);
    }
    let declared = declared_version(params).filter(|_| is_request);
    if let Some(version) = version.filter(|version| declared.is_none() && !VERSIONS.contains(version)) {
        return Err(RpcError::new(RpcError::INVALID_REQUEST, format!("Unsupported MCP-Protocol-Version: {version}")));
    }
    if version.is_some_and(|version| version >= MODERN_VERSION) {
        check_routing(headers, method, params, schema)?;
    }
    if !is_request {
        return Ok(());
    }
    match (declared, version) {
        (None, Some(version)) if version >= MODERN_VERSION => {
            let message =
                format!("request _meta is missing or has malformed required fields: {VERSION_KEY}, {CAPABILITIES_KEY}");
            Err(RpcError::new(RpcError::INVALID_PARAMS, message))
        }
        (Some(_), None) => Err(mismatch("request _meta protocolVersion requires MCP-Protocol-Version header")),
        (Some(declared), Some(version)) if declared != version => Err(mismatch(format!(
            "MCP-Protocol-Version header ({version}) does not match request _meta protocolVersion ({declared})"
        ))),
        _ => Ok(()),
    }
}

fn check_initialize(headers: &HeaderMap, version: Option<&str>, params: &Value) -> Result<(), RpcError> {
    let declared = params["protocolVersion"].as_str().unwrap_or_default();
    if let Some(version) = version.filter(|version| *version != declared) {
        let message =
            format!("MCP-Protocol-Version header ({version}) does not match params.protocolVersion ({declared})");
        return Err(RpcError::new(RpcError::INVALID_REQUEST, message));
    }
    match text(headers, &METHOD)? {
        Some(method) if method != "initialize" => {
            Err(mismatch(format!("Mcp-Method header `{method}` does not match body method `initialize`")))
        }
        _ => Ok(()),
    }
}

fn check_routing(
    headers: &HeaderMap,
    method: &str,
    params: &Value,
    schema: impl FnOnce(&str) -> Option<Value>,
) -> Result<(), RpcError> {
    match text(headers, &METHOD)? {
        None => return Err(mismatch("missing required Mcp-Method header")),
        Some(value) if value != method => {
            return Err(mismatch(format!("Mcp-Method header `{value}` does not match body method `{method}`")));
        }
        Some(_) => {}
    }
    let Some(name) = subject(method, params) else { return Ok(()) };
    let given = text(headers, &NAME)?;
    let given = given.ok_or_else(|| mismatch(format!("missing required Mcp-Name header for `{method}`")))?;
    let given = decode(given).ok_or_else(|| mismatch("Mcp-Name header is not valid Base64"))?;
    if given != name {
        return Err(mismatch(format!("Mcp-Name header `{given}` does not match body value `{name}`")));
    }
    if method == "tools/call"
        && let Some(schema) = schema(name)
    {
        for parameter in parameters(&schema) {
            parameter.check(headers, &params["arguments"])?;
        }
    }
    Ok(())
}

/// Returns the name, URI or task id that a request refers to.
pub fn subject<'a>(method: &str, params: &'a Value) -> Option<&'a str> {
    let key = match method {
        "tools/call" | "prompts/get" => "name",
        "resources/read" | "resources/subscribe" | "resources/unsubscribe" => "uri",
        "tasks/get" | "tasks/update" | "tasks/cancel" => "taskId",
        _ => return None,
    };
    params.get(key)?.as_str()
}

/// An argument of a tool that must also be sent as a header.
struct Parameter {
    path: Vec<String>,
    header: String,
}

impl Parameter {
    fn value(&self, arguments: &Value) -> Option<String> {
        match self.path.iter().try_fold(arguments, |value, key| value.get(key))? {
            Value::String(text) => Some(text.clone()),
            Value::Bool(truth) => Some(truth.to_string()),
            Value::Number(number) => Some(number.to_string()),
            _ => None,
        }
    }

    fn check(&self, headers: &HeaderMap, arguments: &Value) -> Result<(), RpcError> {
        let (header, name) = (&self.header, self.path.join("."));
        let given = match HeaderName::from_bytes(header.as_bytes()) {
            Ok(key) => text(headers, &key)?,
            Err(_) => return Ok(()),
        };
        match (given, self.value(arguments)) {
            (None, None) => Ok(()),
            (Some(_), None) => Err(mismatch(format!("unexpected {header} header for absent or null `{name}`"))),
            (None, Some(_)) => Err(mismatch(format!("missing {header} header for `{name}`"))),
            (Some(given), Some(expected)) => {
                let given = decode(given).ok_or_else(|| mismatch(format!("{header} header is not valid Base64")))?;
                if given == expected {
                    return Ok(());
                }
                Err(mismatch(format!("{header} header `{given}` does not match body value `{expected}`")))
            }
        }
    }
}

fn parameters(schema: &Value) -> Vec<Parameter> {
    let mut found = Vec::new();
    collect(schema, &mut Vec::new(), &mut found);
    found
}

fn collect(schema: &Value, path: &mut Vec<String>, found: &mut Vec<Parameter>) {
    /// Maximum nesting of annotated arguments.
    const MAX_DEPTH: usize = 16;
    let Some(properties) = schema.get("properties").and_then(Value::as_object) else { return };
    if path.len() == MAX_DEPTH {
        return;
    }
    for (name, property) in properties {
        path.push(name.clone());
        if let Some(header) = property.get("x-mcp-header").and_then(Value::as_str).filter(|header| !header.is_empty()) {
            found.push(Parameter { path: path.clone(), header: format!("mcp-param-{header}").to_ascii_lowercase() });
        }
        collect(property, path, found);
        path.pop();
    }
}

/// Returns the value of a header. Duplicates are rejected, since an intermediary might use the other one.
fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, RpcError> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(mismatch(format!("duplicate {name} header")));
    }
    value.to_str().map(Some).map_err(|_| mismatch(format!("{name} header is not text")))
}

const BASE64_PREFIX: &str = "=?base64?";
const BASE64_SUFFIX: &str = "?=";

fn decode(value: &str) -> Option<String> {
    match value.strip_prefix(BASE64_PREFIX).and_then(|rest| rest.strip_suffix(BASE64_SUFFIX)) {
        Some(encoded) => String::from_utf8(STANDARD.decode(encoded).ok()?).ok(),
        None => Some(value.to_owned()),
    }
}

fn mismatch(message: impl Into<String>) -> RpcError {
    RpcError::new(RpcError::HEADER_MISMATCH, message)
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;
    use serde_json::json;

    use super::*;

    fn headers(lines: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    fn call(lines: &[(&str, &str)], arguments: &Value) -> Result<(), RpcError> {
        let params =
            json!({"name": "t", "arguments": arguments, "_meta": {VERSION_KEY: MODERN_VERSION, CAPABILITIES_KEY: {}}});
        let schema = json!({"properties": {"region": {"type": "string", "x-mcp-header": "Region"}}});
        let base = [("MCP-Protocol-Version", MODERN_VERSION), ("Mcp-Method", "tools/call"), ("Mcp-Name", "t")];
        check(&headers(&[&base, lines].concat()), "tools/call", &params, true, |_| Some(schema))
    }

    #[test]
    fn annotated_argument_must_match_its_header() {
        assert_eq!(call(&[("Mcp-Param-Region", "eu")], &json!({"region": "eu"})), Ok(()));
        assert_eq!(call(&[("Mcp-Param-Region", "=?base64?ZcO8?=")], &json!({"region": "eü"})), Ok(()));
        assert_eq!(call(&[], &json!({})), Ok(()));
        for (lines, arguments) in [
            (vec![], json!({"region": "eu"})),
            (vec![("Mcp-Param-Region", "us")], json!({"region": "eu"})),
            (vec![("Mcp-Param-Region", "eu")], json!({"region": null})),
            (vec![("Mcp-Param-Region", "eu"), ("Mcp-Param-Region", "eu")], json!({"region": "eu"})),
            (vec![("Mcp-Name", "u")], json!({})),
        ] {
            assert_eq!(call(&lines, &arguments).unwrap_err().code, RpcError::HEADER_MISMATCH, "{lines:?}");
        }
    }
}
