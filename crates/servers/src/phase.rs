//! The phases of a server's start: how a start reports its progress, and how it fails.

use std::fmt;
use std::sync::Arc;

/// A phase between a server's entry and a response of its tools. The names are part of the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    SessionCreate,
    DepInstall,
    ProcessStart,
    RelayConnect,
    McpInit,
    Runtime,
    ToolCall,
    /// This host cannot run the sandbox; a retry does not help.
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

    /// Returns the name that responses contain.
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

/// The reason why a server could not be started.
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
    /// A failure that every retry repeats until the entry, the host or the package changes.
    pub fn permanent(phase: Phase, message: impl Into<String>) -> Self {
        Self { phase, message: message.into(), hints: Vec::new(), is_transient: false }
    }

    /// A failure that a retry may not meet again.
    pub fn transient(phase: Phase, message: impl Into<String>) -> Self {
        Self { phase, message: message.into(), hints: Vec::new(), is_transient: true }
    }

    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }
}

/// Receives each step of a start. The default discards them.
#[derive(Clone, Default)]
pub struct Progress(Option<Arc<OnStep>>);

type OnStep = dyn Fn(Phase, &str) + Send + Sync;

impl Progress {
    /// `on_step` is called with the phase and a short text, such as `installing mcp-server-time`. It must not block.
    pub fn new(on_step: impl Fn(Phase, &str) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(on_step)))
    }

    pub(crate) fn report(&self, phase: Phase, step: &str) {
        if let Some(on_step) = &self.0 {
            on_step(phase, step);
        }
    }
}
