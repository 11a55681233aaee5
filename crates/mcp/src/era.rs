//! The two eras of the protocol, and the detection of the era of a request.
//!
//! Legacy, until 2025-11-25: a client starts with `initialize`, and the server stores its capabilities. Modern, since
//! 2026-07-28: the `_meta` of every request describes its client, and the server stores nothing.

use serde_json::{Value, json};

use crate::rpc::RpcError;

pub const VERSIONS: [&str; 5] = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", MODERN_VERSION];

/// The only version of the modern era so far.
pub const MODERN_VERSION: &str = "2026-07-28";
const LATEST_LEGACY_VERSION: &str = "2025-11-25";

pub const VERSION_KEY: &str = "io.modelcontextprotocol/protocolVersion";
pub const CAPABILITIES_KEY: &str = "io.modelcontextprotocol/clientCapabilities";
pub const SERVER_INFO_KEY: &str = "io.modelcontextprotocol/serverInfo";
pub const SUBSCRIPTION_KEY: &str = "io.modelcontextprotocol/subscriptionId";

/// The request of the modern era whose response is a stream without an end.
pub const SUBSCRIBE_METHOD: &str = "subscriptions/listen";

/// The first version without batches.
const WITHOUT_BATCHES: &str = "2025-06-18";

pub fn has_batches(version: &str) -> bool {
    version < WITHOUT_BATCHES
}

pub fn no_batches() -> RpcError {
    let message = format!("batches are not supported since {WITHOUT_BATCHES}; send one message at a time");
    RpcError::new(RpcError::INVALID_REQUEST, message)
}

/// Checks whether a request may be part of a batch.
pub fn check_in_batch(method: &str, era: Era) -> Result<(), RpcError> {
    match era {
        Era::Modern => Err(no_batches()),
        Era::Legacy if method == "initialize" => {
            Err(RpcError::new(RpcError::INVALID_REQUEST, "`initialize` must not be part of a batch"))
        }
        Era::Legacy => Ok(()),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Era {
    Legacy,
    Modern,
}

/// Returns the version that a request declares in its `_meta`.
pub fn declared_version(params: &Value) -> Option<&str> {
    params.get("_meta")?.get(VERSION_KEY)?.as_str()
}

/// Returns the era of a request, or an error if required metadata is missing.
pub fn of_request(method: &str, params: &Value) -> Result<Era, RpcError> {
    let version = declared_version(params);
    // In the modern era this method does not exist, and is rejected later.
    if method == "initialize" && version != Some(MODERN_VERSION) {
        return Ok(Era::Legacy);
    }
    if version.is_none() && method != "server/discover" {
        return Ok(Era::Legacy);
    }
    if let Some(version) = version.filter(|version| !VERSIONS.contains(version)) {
        return Err(unsupported(version));
    }
    if version.is_some_and(|version| version < MODERN_VERSION) && method != "server/discover" {
        return Ok(Era::Legacy);
    }
    let meta = &params["_meta"];
    let missing: Vec<&str> =
        [(VERSION_KEY, meta[VERSION_KEY].is_string()), (CAPABILITIES_KEY, meta[CAPABILITIES_KEY].is_object())]
            .into_iter()
            .filter_map(|(key, is_present)| (!is_present).then_some(key))
            .collect();
    if missing.is_empty() {
        return Ok(Era::Modern);
    }
    let message = format!("request _meta is missing or has malformed required fields: {}", missing.join(", "));
    Err(RpcError::new(RpcError::INVALID_PARAMS, message))
}

pub fn unsupported(version: &str) -> RpcError {
    RpcError::new(RpcError::UNSUPPORTED_PROTOCOL_VERSION, "Unsupported protocol version")
        .with_data(json!({"requested": version, "supported": VERSIONS}))
}

/// Returns the version for the response to `initialize`.
pub fn negotiate(requested: &str) -> &'static str {
    VERSIONS
        .into_iter()
        .filter(|version| *version < MODERN_VERSION)
        .find(|version| *version == requested)
        .unwrap_or(LATEST_LEGACY_VERSION)
}

/// Adds or removes the members of a result that depend on the era of its request.
pub fn mark_result(result: &mut Value, method: &str, era: Era) {
    let Value::Object(fields) = result else { return };
    match era {
        Era::Legacy => {
            if fields.get("resultType").is_some_and(|kind| kind == "complete") {
                fields.shift_remove("resultType");
            }
        }
        Era::Modern => {
            let kind = fields.entry("resultType").or_insert_with(|| "complete".into());
            if kind == "complete" && is_cacheable(method) {
                fields.entry("ttlMs").or_insert_with(|| 0.into());
                fields.entry("cacheScope").or_insert_with(|| "private".into());
            }
        }
    }
}

fn is_cacheable(method: &str) -> bool {
    ["tools/list", "prompts/list", "resources/list", "resources/templates/list", "resources/read", "server/discover"]
        .contains(&method)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(version: &str) -> Value {
        json!({"_meta": {VERSION_KEY: version, CAPABILITIES_KEY: {}}})
    }

    #[test]
    fn era_of_request_is_detected() {
        assert_eq!(of_request("tools/list", &Value::Null), Ok(Era::Legacy));
        assert_eq!(of_request("tools/list", &meta("2025-11-25")), Ok(Era::Legacy));
        assert_eq!(of_request("tools/list", &meta(MODERN_VERSION)), Ok(Era::Modern));
        assert_eq!(of_request("server/discover", &meta("2025-11-25")), Ok(Era::Modern));
        assert_eq!(of_request("initialize", &Value::Null), Ok(Era::Legacy));
        assert_eq!(of_request("initialize", &meta(MODERN_VERSION)), Ok(Era::Modern));
        assert_eq!(
            of_request("tools/list", &meta("2099-01-01")).unwrap_err().code,
            RpcError::UNSUPPORTED_PROTOCOL_VERSION
        );
        assert_eq!(of_request("server/discover", &Value::Null).unwrap_err().code, RpcError::INVALID_PARAMS);
        let half = json!({"_meta": {VERSION_KEY: MODERN_VERSION}});
        assert!(of_request("ping", &half).unwrap_err().message.ends_with(CAPABILITIES_KEY));
    }

    #[test]
    fn newest_legacy_version_is_negotiated_for_unknown_versions() {
        assert_eq!(negotiate("2024-11-05"), "2024-11-05");
        assert_eq!(negotiate(MODERN_VERSION), "2025-11-25");
        assert_eq!(negotiate("1999-01-01"), "2025-11-25");
    }

    #[test]
    fn result_is_marked_only_in_modern_era() {
        let mut result = json!({"tools": []});
        mark_result(&mut result, "tools/list", Era::Modern);
        assert_eq!(result, json!({"tools": [], "resultType": "complete", "ttlMs": 0, "cacheScope": "private"}));
        mark_result(&mut result, "tools/list", Era::Legacy);
        assert!(result.get("resultType").is_none());
        let mut input_required = json!({"resultType": "input_required", "inputRequests": {}});
        mark_result(&mut input_required, "resources/read", Era::Modern);
        assert!(input_required.get("ttlMs").is_none());
    }
}
