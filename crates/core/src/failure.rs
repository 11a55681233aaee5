//! A request that cannot be served, in the terms of the error table.

use std::collections::BTreeMap;

/// What kind of refusal it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    ResourceLimit,
    /// There is no room just now; whoever asks again shortly may be served.
    Busy,
    SessionNotFound,
    /// Something in a session: a file, a process.
    NotFound,
    Validation,
    Policy,
    Configuration,
    SandboxCreation,
    Connection,
    Internal,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Self::ResourceLimit => "resource_limit",
            Self::Busy => "busy",
            Self::SessionNotFound => "session_not_found",
            Self::NotFound => "not_found",
            Self::Validation => "validation",
            Self::Policy => "policy",
            Self::Configuration => "configuration",
            Self::SandboxCreation => "sandbox_creation",
            Self::Connection => "connection",
            Self::Internal => "internal",
        }
    }
}

/// Why a request was not served, and what to do about it.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    pub kind: Kind,
    pub message: String,
    pub hints: Vec<String>,
    pub context: BTreeMap<String, String>,
}

impl Failure {
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), hints: Vec::new(), context: BTreeMap::new() }
    }

    #[must_use]
    pub fn hint(mut self, suggestion: impl Into<String>) -> Self {
        self.hints.push(suggestion.into());
        self
    }

    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<String>) -> Self {
        self.context.insert(key.into(), value.into());
        self
    }

    /// The same words for a session that never was, has ended, or is another's.
    pub fn session_not_found(session: &crate::identity::SessionId) -> Self {
        Self::new(Kind::SessionNotFound, format!("session not found: {session}"))
            .hint("it may have ended after a time without calls: start a new one, by a call without session_id")
            .hint("get_sessions, or GET /v1/sessions, lists those that are alive")
    }
}
