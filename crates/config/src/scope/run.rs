//! Which run an endpoint serves: for the audit and the log, and believed in nothing else.

use serde::{Deserialize, Serialize};

/// The run, as whoever started it names it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Run {
    /// The orchestrator's own session; not one of a sandbox.
    pub session_id: String,
    pub run_id: String,
    /// The stage of the run, where it has a name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker_namespace: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_identity: Option<ModelIdentity>,
}

/// The model that the run is made with.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelIdentity {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transport: Option<String>,
}

impl ModelIdentity {
    pub(super) fn texts(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let texts = [
            ("model_identity.provider", &self.provider),
            ("model_identity.model_id", &self.model_id),
            ("model_identity.transport", &self.transport),
        ];
        texts.into_iter().filter_map(|(name, text)| Some((name, text.as_deref()?)))
    }
}
