//! The two eras of the protocol, and what a request of each carries.
//!
//! Legacy (up to 2025-11-25): a handshake, then bare requests. Modern (2026-07-28): no handshake; every
//! request says by itself which version it speaks and who asks.

use serde_json::{Map, Value};

use crate::era::{CAPABILITIES_KEY, VERSION_KEY};

/// The modern versions that are spoken, newest first.
pub(super) const MODERN_VERSIONS: &[&str] = &["2026-07-28"];
/// The legacy versions that are accepted, newest first; the first is what is offered.
pub(super) const LEGACY_VERSIONS: &[&str] = &["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];

const CLIENT_KEY: &str = "io.modelcontextprotocol/clientInfo";
const LOG_LEVEL_KEY: &str = "io.modelcontextprotocol/logLevel";

/// What both sides speak.
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

/// Who asks: the name that servers see, and what it can do for them.
#[derive(Debug, Clone)]
pub struct ClientIdentity {
    pub name: String,
    pub version: String,
    /// As in `initialize`: elicitation, sampling, roots.
    pub capabilities: Value,
}

impl ClientIdentity {
    pub(super) fn info(&self) -> Value {
        serde_json::json!({ "name": self.name, "version": self.version })
    }
}

/// Makes the parameters those of a request of the era. What the caller said of the client stays, since in
/// the modern era each request speaks for itself; a legacy server is told nothing of that.
pub(super) fn dress(params: &mut Option<Value>, era: Option<&Era>, who: &ClientIdentity) {
    match era {
        Some(Era::Modern(version)) => {
            let Some(meta) = meta_of(params) else { return };
            meta.insert(VERSION_KEY.to_owned(), Value::from(version.as_str()));
            meta.entry(CLIENT_KEY).or_insert_with(|| who.info());
            meta.entry(CAPABILITIES_KEY).or_insert_with(|| who.capabilities.clone());
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

/// The `_meta` of the parameters, made if it is missing. None where parameters are no object.
fn meta_of(params: &mut Option<Value>) -> Option<&mut Map<String, Value>> {
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

    fn who() -> ClientIdentity {
        ClientIdentity { name: "n".into(), version: "1".into(), capabilities: json!({"roots": {}}) }
    }

    #[test]
    fn a_modern_request_says_who_asks_and_a_legacy_one_does_not() {
        let modern = Era::Modern("2026-07-28".into());
        let mut params = Some(json!({"name": "t", "_meta": {"x": 1}}));
        dress(&mut params, Some(&modern), &who());
        let expected = json!({"name": "t", "_meta": {
            "x": 1, VERSION_KEY: "2026-07-28", CLIENT_KEY: {"name": "n", "version": "1"}, CAPABILITIES_KEY: {"roots": {}}
        }});
        assert_eq!(params, Some(expected));
        dress(&mut params, Some(&Era::Legacy("2025-06-18".into())), &who());
        assert_eq!(params, Some(json!({"name": "t", "_meta": {"x": 1}})));
        let mut none = None;
        dress(&mut none, Some(&Era::Legacy("2025-06-18".into())), &who());
        assert_eq!(none, None);
    }

    #[test]
    fn what_a_request_says_of_its_client_stays_but_not_its_version() {
        let mut params = Some(json!({"_meta": {VERSION_KEY: "1999-01-01", CAPABILITIES_KEY: {"sampling": {}}}}));
        dress(&mut params, Some(&Era::Modern("2026-07-28".into())), &who());
        let meta = &params.unwrap()["_meta"];
        assert_eq!(meta[VERSION_KEY], "2026-07-28");
        assert_eq!(meta[CAPABILITIES_KEY], json!({"sampling": {}}));
    }
}
