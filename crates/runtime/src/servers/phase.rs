//! Where in the life of a hosted server something failed.

/// The step that failed, in the order in which a start takes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    SessionCreate,
    DepInstall,
    ProcessStart,
    RelayConnect,
    McpInit,
    Runtime,
    ToolCall,
    /// There are no walls to start it in.
    BoxUnavailable,
}

impl Phase {
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
