//! Where on its way a server failed, and what to do about it.

use std::fmt;

/// A part of a server's way from its entry to an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    SessionCreate,
    DepInstall,
    ProcessStart,
    RelayConnect,
    McpInit,
    Runtime,
    ToolCall,
    /// No sandbox can be made here; trying again does not help.
    BoxUnavailable,
}

impl Phase {
    pub const ALL: [Self; 8] = [
        Self::SessionCreate,
        Self::DepInstall,
        Self::ProcessStart,
        Self::RelayConnect,
        Self::McpInit,
        Self::Runtime,
        Self::ToolCall,
        Self::BoxUnavailable,
    ];

    /// As it is written in answers.
    pub fn name(self) -> &'static str {
        match self {
            Self::SessionCreate => "session_create",
            Self::DepInstall => "dep_install",
            Self::ProcessStart => "process_start",
            Self::RelayConnect => "relay_connect",
            Self::McpInit => "mcp_init",
            Self::Runtime => "runtime",
            Self::ToolCall => "tool_call",
            Self::BoxUnavailable => "box_unavailable",
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A server that could not be started.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct StartFailure {
    pub phase: Phase,
    pub message: String,
    pub hints: Vec<String>,
    /// Whether the same attempt may succeed later.
    pub is_transient: bool,
}

impl StartFailure {
    /// One that stays until something is changed.
    pub fn lasting(phase: Phase, message: impl Into<String>) -> Self {
        Self { phase, message: message.into(), hints: Vec::new(), is_transient: false }
    }

    /// One that may not come again.
    pub fn transient(phase: Phase, message: impl Into<String>) -> Self {
        Self { phase, message: message.into(), hints: Vec::new(), is_transient: true }
    }

    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }
}
