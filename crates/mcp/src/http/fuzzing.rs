//! Headers of requests, for the fuzz target `rpc_front`.

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::Value;

use super::headers::{check, subject};
use crate::era::MODERN_VERSION;

const MAX_LINES: usize = 64;

/// Lines of `NAME:VALUE`, an empty line, and the body: `{"method", "params", "schema"}`.
pub fn headers(bytes: &[u8]) {
    let end = bytes.windows(2).position(|two| two == b"\n\n").unwrap_or(bytes.len());
    let mut headers = HeaderMap::new();
    for line in bytes[..end].split(|byte| *byte == b'\n').take(MAX_LINES) {
        let colon = line.iter().position(|byte| *byte == b':').unwrap_or(line.len());
        let name = HeaderName::from_bytes(&line[..colon]);
        let value = HeaderValue::from_bytes(line.get(colon + 1..).unwrap_or_default());
        if let (Ok(name), Ok(value)) = (name, value) {
            headers.append(name, value);
        }
    }
    let body: Value = bytes.get(end + 2..).and_then(|body| serde_json::from_slice(body).ok()).unwrap_or_default();
    let (method, params) = (body["method"].as_str().unwrap_or("tools/call"), &body["params"]);
    for is_request in [true, false] {
        let checked = check(&headers, method, params, is_request, |_| body.get("schema").cloned());
        let version = headers.get("mcp-protocol-version").and_then(|version| version.to_str().ok());
        if checked.is_ok() && version.is_some_and(|version| version >= MODERN_VERSION) && method != "initialize" {
            assert_eq!(headers.get("mcp-method").and_then(|given| given.to_str().ok()), Some(method));
            assert!(subject(method, params).is_none() || headers.contains_key("mcp-name"));
        }
    }
}
