//! Errors of specs.

use std::path::PathBuf;

use super::MAX_EGRESS_PORTS;
use crate::bytes;

/// The reason why a spec is invalid on every host.
#[derive(Debug, thiserror::Error)]
pub enum SpecError {
    #[error("{name} of {value} is out of range ({min} to {max})")]
    OutOfRange { name: &'static str, value: String, min: String, max: String },
    #[error("cpus of {0} is out of range (0.01 to 1024)")]
    Cpus(f64),
    #[error("workspace of {} is more than three quarters of the memory limit of {}", bytes::format(*workspace), bytes::format(*memory))]
    WorkspaceOverMemory { workspace: u64, memory: u64 },
    #[error("guest uid {0} is out of range (1 to 65533)")]
    Uid(u32),
    #[error("volume path {} {problem}", path.display())]
    Volume { path: PathBuf, problem: &'static str },
    #[error("two volumes have the guest path {}", .0.display())]
    DuplicateGuestPath(PathBuf),
    #[error("file path {} {problem}", path.display())]
    File { path: PathBuf, problem: &'static str },
    #[error("environment variable `{0}` has an empty name, a name with `=`, or a NUL byte")]
    Environment(String),
    #[error("working directory {} {problem}", path.display())]
    Workdir { path: PathBuf, problem: &'static str },
    #[error("network port {0} cannot be allowed: the sandbox uses it for its own services")]
    EgressPort(u16),
    #[error("{0} network ports are too many, besides 80 and 443 there may be {MAX_EGRESS_PORTS}")]
    TooManyEgressPorts(usize),
    #[error("no command to run")]
    NoCommand,
}

impl SpecError {
    /// Returns hints on what to change.
    pub fn hints(&self) -> Vec<String> {
        match self {
            Self::WorkspaceOverMemory { .. } => {
                vec!["the workspace is stored in memory: raise --memory, or lower --workspace".into()]
            }
            Self::Volume { .. } => {
                vec!["write a volume as HOST:GUEST[:ro|rw], with an absolute guest path and without `..`".into()]
            }
            Self::DuplicateGuestPath(_) => vec!["give each volume a guest path that no other volume has".into()],
            Self::TooManyEgressPorts(_) => vec!["allow hosts on fewer different ports".into()],
            Self::NoCommand => vec!["put the command after `--`".into()],
            _ => Vec::new(),
        }
    }
}
