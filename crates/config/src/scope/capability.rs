//! What a scope can allow, by name.

use ringfence_core::suggest::{closest, join};

/// Something that a scope allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Capability {
    /// Code in a sandbox: `execute_code`, `run_python`.
    Code,
    /// Programs in a sandbox: `execute_command`, and processes that stay.
    Command,
    /// Files of a session: `read_file`, `list_files`.
    ReadFiles,
    /// `write_file`.
    WriteFiles,
    /// Sessions seen and ended: `get_sessions`, `stop_session`, `get_volume_path`.
    Sessions,
    /// All that hosted servers offer, directly and from code: tools, prompts, resources, `search_tools`.
    Servers,
    /// Tools and values that code keeps for later runs.
    Memory,
}

impl Capability {
    pub const ALL: [Self; 7] =
        [Self::Code, Self::Command, Self::ReadFiles, Self::WriteFiles, Self::Sessions, Self::Servers, Self::Memory];

    /// As it is written in a scope.
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

    pub(super) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|capability| capability.name() == name)
    }
}

/// Which one was probably meant, and which there are.
pub(super) fn advice(unknown: &str) -> String {
    let known = || Capability::ALL.into_iter().map(Capability::name);
    let all = format!("known are {}", join(known()));
    closest(unknown, known()).map_or(all.clone(), |meant| format!("did you mean `{meant}`? {all}"))
}
