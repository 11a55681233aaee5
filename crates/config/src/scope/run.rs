//! The identity of the run that an endpoint serves. It is used for the audit and the log only: no decision depends on it.

use serde::{Deserialize, Serialize};

/// The identity of a run, as the orchestrator names it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Run {
    /// The session of the orchestrator, not one of a sandbox.
    pub session_id: String,
    pub run_id: String,
    /// The stage of the run, if `drain` in the scope file is the name of one.
    #[serde(rename = "drain", skip_serializing_if = "Option::is_none")]
    pub stage: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker_namespace: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_identity: Option<ModelIdentity>,
}

/// The model that the run uses.
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
    /// Returns the texts that are set, with the names of their fields.
    pub(super) fn texts(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let texts = [
            ("model_identity.provider", &self.provider),
            ("model_identity.model_id", &self.model_id),
            ("model_identity.transport", &self.transport),
        ];
        texts.into_iter().filter_map(|(field, text)| Some((field, text.as_deref()?)))
    }
}
