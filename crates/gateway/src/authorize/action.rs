//! The actions that principals may take, and the capabilities of a scope that allow them.

use ringfence_config::Capability;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    RunCode,
    RunCommand,
    /// Runs code or a command; the request shows which.
    Run,
    ReadFiles,
    WriteFiles,
    /// Creates a session in which something can be run.
    CreateSession,
    /// Lists sessions, and ends them.
    ManageSessions,
    /// Reads the full output of a call.
    ReadOutput,
    UseServers,
    /// Extends what a session may reach. Never a right of code or of an MCP client; see `Authorizer::check_rules`.
    ExtendNetwork,
    /// Adds, changes, pins and removes servers, and reads their logs. Only the operator may.
    ManageServers,
    /// Stores values and tools for later runs, and reads them.
    UseMemory,
    /// Anything that no capability allows.
    Other,
}

impl Action {
    /// The capabilities that allow the action; any of them is enough.
    pub(super) fn capabilities(self) -> &'static [Capability] {
        match self {
            Self::RunCode => &[Capability::Code],
            Self::RunCommand => &[Capability::Command],
            Self::Run | Self::ReadOutput => &[Capability::Code, Capability::Command],
            Self::ReadFiles => &[Capability::ReadFiles],
            Self::WriteFiles => &[Capability::WriteFiles],
            Self::CreateSession => &[Capability::Code, Capability::Command, Capability::Sessions],
            Self::ManageSessions => &[Capability::Sessions],
            Self::UseServers | Self::ManageServers => &[Capability::Servers],
            Self::UseMemory => &[Capability::Memory],
            Self::ExtendNetwork | Self::Other => &[],
        }
    }
}
