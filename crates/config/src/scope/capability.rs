//! The capabilities that a scope can grant.

use ringfence_core::suggest::{closest, join};

/// A capability that a scope grants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Capability {
    /// Code in a sandbox: `execute_code`, `run_python`.
    Code,
    /// Programs in a sandbox: `execute_command`, and background processes.
    Command,
    /// Reading files of a session: `read_file`, `list_files`.
    ReadFiles,
    /// `write_file`.
    WriteFiles,
    /// Listing and ending sessions: `get_sessions`, `stop_session`, `get_volume_path`.
    Sessions,
    /// Everything that hosted servers offer, directly and from code: tools, prompts, resources, `search_tools`.
    Servers,
    /// Tools and values that code stores for later runs.
    Memory,
}

impl Capability {
    pub const ALL: [Self; 7] =
        [Self::Code, Self::Command, Self::ReadFiles, Self::WriteFiles, Self::Sessions, Self::Servers, Self::Memory];

    /// The name in a scope file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Code => "code",
            Self::Command => "command",
            Self::ReadFiles => "files.read",
            Self::WriteFiles => "files.write",
            Self::Sessions => "sessions",
            Self::Servers => "servers",
            Self::Memory => "memory",
        }
    }

    pub(super) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|capability| capability.name() == name)
    }
}

/// Returns a hint for an unknown capability: a suggestion and the list of all names.
pub(super) fn hint(unknown: &str) -> String {
    let known = || Capability::ALL.into_iter().map(Capability::name);
    let list = format!("known capabilities: {}", join(known()));
    closest(unknown, known()).map_or(list.clone(), |suggestion| format!("did you mean `{suggestion}`? {list}"))
}
