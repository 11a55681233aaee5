//! The reasons for which a server is not connected, as people and programs see them.

use ringfence_core::hidden_text;
use ringfence_servers::Phase;
use serde::{Serialize, Serializer};

use super::connect::{ConnectFailure, LinkEnd};
use super::state_machine::Status;

/// Limits for a failure, most of whose text comes from the server.
const MAX_TEXT_BYTES: usize = 2048;
const MAX_HINTS: usize = 8;

/// The last failure of a server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct ServerFailure {
    pub(crate) message: String,
    #[serde(serialize_with = "phase_name")]
    pub(crate) phase: Phase,
    pub(crate) hints: Vec<String>,
}

/// The reason for which there is no link to a server.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("server {server} is {}: {message}", status.map_or("unknown", Status::name))]
pub(crate) struct LinkMissing {
    pub(crate) server: String,
    /// None if there is no such server.
    pub(crate) status: Option<Status>,
    pub(crate) phase: Option<Phase>,
    pub(crate) message: String,
    pub(crate) hints: Vec<String>,
}

impl ServerFailure {
    pub(super) fn new(phase: Phase, message: &str, hints: &[String]) -> Self {
        let hints = hints.iter().take(MAX_HINTS).map(|hint| sanitize(hint, MAX_TEXT_BYTES)).collect();
        Self { message: sanitize(message, MAX_TEXT_BYTES), phase, hints }
    }

    pub(super) fn from_attempt(failure: &ConnectFailure) -> Self {
        Self::new(failure.phase, &failure.message, &failure.hints)
    }

    pub(super) fn from_link_end(end: &LinkEnd) -> Self {
        Self::new(Phase::Runtime, &end.message, &end.hints)
    }
}

impl LinkMissing {
    pub(super) fn unknown(server: &str) -> Self {
        let message = "no entry has this name".into();
        Self { server: server.into(), status: None, phase: None, message, hints: Vec::new() }
    }

    pub(super) fn from_failure(server: &str, status: Status, failure: ServerFailure) -> Self {
        let ServerFailure { message, phase, hints } = failure;
        Self { server: server.into(), status: Some(status), phase: Some(phase), message, hints }
    }
}

/// Returns at most `max_bytes` of a text, without control characters and with other hidden characters escaped.
pub(super) fn sanitize(text: &str, max_bytes: usize) -> String {
    let end = (0..=max_bytes.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    let is_plain = |c: &char| !c.is_control() || matches!(c, '\n' | '\t');
    let plain: String = text[..end.unwrap_or_default()].chars().filter(is_plain).collect();
    hidden_text::escape(&plain).into_owned()
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde requires")]
fn phase_name<S: Serializer>(phase: &Phase, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(phase.name())
}
