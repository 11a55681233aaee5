//! The two eras of the protocol, and the metadata of their requests.
//!
//! Legacy (up to 2025-11-25): a handshake, then requests without metadata. Modern (2026-07-28): no handshake; the `_meta`
//! of every request has the protocol version and describes the client.

use serde_json::{Map, Value};

use crate::era::{CAPABILITIES_KEY, VERSION_KEY};

/// The supported modern versions, newest first.
pub(super) const MODERN_VERSIONS: &[&str] = &["2026-07-28"];
/// The supported legacy versions, newest first. `initialize` offers the first.
pub(super) const LEGACY_VERSIONS: &[&str] = &["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];

const CLIENT_KEY: &str = "io.modelcontextprotocol/clientInfo";
const LOG_LEVEL_KEY: &str = "io.modelcontextprotocol/logLevel";

/// The negotiated era, with its protocol version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Era {
    Legacy(String),
    Modern(String),
}

impl Era {
    pub fn version(&self) -> &str {
        match self {
            Self::Legacy(version) | Self::Modern(version) => version,
        }
    }

    pub fn is_modern(&self) -> bool {
        matches!(self, Self::Modern(_))
    }
}

/// The client as servers see it.
#[derive(Debug, Clone)]
pub struct ClientIdentity {
    pub name: String,
    pub version: String,
    /// The capabilities as in `initialize`: elicitation, sampling, roots.
    pub capabilities: Value,
}

impl ClientIdentity {
    pub(super) fn info(&self) -> Value {
        serde_json::json!({ "name": self.name, "version": self.version })
    }
}

/// Adapts the `_meta` of a request to an era. A modern request keeps the description of the client that it has, since
/// every request describes its own client; a legacy request must not have one.
pub(super) fn adapt_metadata(params: &mut Option<Value>, era: Option<&Era>, client: &ClientIdentity) {
    match era {
        Some(Era::Modern(version)) => {
            let Some(meta) = meta_mut(params) else { return };
            meta.insert(VERSION_KEY.to_owned(), Value::from(version.as_str()));
            meta.entry(CLIENT_KEY).or_insert_with(|| client.info());
            meta.entry(CAPABILITIES_KEY).or_insert_with(|| client.capabilities.clone());
        }
        Some(Era::Legacy(_)) => {
            let Some(meta) = params.as_mut().and_then(|params| params.get_mut("_meta")?.as_object_mut()) else {
                return;
            };
            for key in [VERSION_KEY, CLIENT_KEY, CAPABILITIES_KEY, LOG_LEVEL_KEY] {
                meta.shift_remove(key);
            }
        }
        None => {}
    }
}

/// Returns the `_meta` of the parameters, created if it is missing. None if the parameters are not an object.
fn meta_mut(params: &mut Option<Value>) -> Option<&mut Map<String, Value>> {
    let params = params.get_or_insert_with(|| Value::Object(Map::new())).as_object_mut()?;
    let meta = params.entry("_meta").or_insert_with(|| Value::Object(Map::new()));
    if !meta.is_object() {
        *meta = Value::Object(Map::new());
    }
    meta.as_object_mut()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn client_identity() -> ClientIdentity {
        ClientIdentity { name: "n".into(), version: "1".into(), capabilities: json!({"roots": {}}) }
    }

    #[test]
    fn modern_request_describes_client_and_legacy_request_does_not() {
        let modern = Era::Modern("2026-07-28".into());
        let mut params = Some(json!({"name": "t", "_meta": {"x": 1}}));
        adapt_metadata(&mut params, Some(&modern), &client_identity());
        let expected = json!({"name": "t", "_meta": {
            "x": 1, VERSION_KEY: "2026-07-28", CLIENT_KEY: {"name": "n", "version": "1"}, CAPABILITIES_KEY: {"roots": {}}
        }});
        assert_eq!(params, Some(expected));
        adapt_metadata(&mut params, Some(&Era::Legacy("2025-06-18".into())), &client_identity());
        assert_eq!(params, Some(json!({"name": "t", "_meta": {"x": 1}})));
        let mut none = None;
        adapt_metadata(&mut none, Some(&Era::Legacy("2025-06-18".into())), &client_identity());
        assert_eq!(none, None);
    }

    #[test]
    fn client_description_of_request_is_kept_and_its_version_is_replaced() {
        let mut params = Some(json!({"_meta": {VERSION_KEY: "1999-01-01", CAPABILITIES_KEY: {"sampling": {}}}}));
        adapt_metadata(&mut params, Some(&Era::Modern("2026-07-28".into())), &client_identity());
        let meta = &params.unwrap()["_meta"];
        assert_eq!(meta[VERSION_KEY], "2026-07-28");
        assert_eq!(meta[CAPABILITIES_KEY], json!({"sampling": {}}));
    }
}
