//! The failure of a request: a kind, a message, hints and context.
//!
//! Every transport renders the same [`Failure`]: the terminal, MCP and HTTP. [`Kind::name`] is part of those formats.

use std::collections::BTreeMap;

/// The category of a failure. Clients use it to decide what to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A limit of the client is reached; ending what it no longer needs helps.
    ResourceLimit,
    /// The server has no capacity at the moment; a retry after a short time may succeed.
    Busy,
    SessionNotFound,
    /// An object other than a session does not exist: a file, a process, a server.
    NotFound,
    Validation,
    Policy,
    Configuration,
    SandboxCreation,
    Connection,
    Internal,
}

impl Kind {
    /// The stable name of the kind in responses and audit events.
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

/// The reason why a request failed, with hints on what to do next.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    pub kind: Kind,
    pub message: String,
    pub hints: Vec<String>,
    /// Machine-readable facts for the client, such as the name of an invalid field.
    pub context: BTreeMap<String, String>,
}

impl Failure {
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), hints: Vec::new(), context: BTreeMap::new() }
    }

    /// Adds a hint: one thing that the client or the operator can do.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }

    /// Adds an entry to the context.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<String>) -> Self {
        self.context.insert(key.into(), value.into());
        self
    }

    /// Returns one and the same failure for a session that never existed, has ended, or belongs to another principal,
    /// so that a caller cannot find out which.
    pub fn session_not_found(session: &crate::identity::SessionId) -> Self {
        Self::new(Kind::SessionNotFound, format!("session not found: {session}"))
            .hint("it may have timed out; omit `session_id` to start a new session")
            .hint("list live sessions with get_sessions or GET /v1/sessions")
    }
}
