//! Why a spec is refused.

use std::path::PathBuf;

use crate::bytes;

/// A spec that makes no sense on any host.
#[derive(Debug, thiserror::Error)]
pub enum SpecError {
    #[error("{what} of {value} is out of range ({least} to {most})")]
    OutOfRange { what: &'static str, value: String, least: String, most: String },
    #[error("cpus of {0} is out of range (0.01 to 1024)")]
    Cpus(f64),
    #[error("workspace of {} is more than three quarters of the memory limit of {}", bytes::format(*workspace), bytes::format(*memory))]
    WorkspaceOverMemory { workspace: u64, memory: u64 },
    #[error("guest uid {0} is out of range (1 to 65533)")]
    Uid(u32),
    #[error("volume path {} {problem}", path.display())]
    Volume { path: PathBuf, problem: &'static str },
    #[error("two volumes have the guest path {}", .0.display())]
    VolumeTwice(PathBuf),
    #[error("environment variable `{0}` is empty, or has `=` or NUL in it")]
    Environment(String),
    #[error("working directory {} {problem}", path.display())]
    Workdir { path: PathBuf, problem: &'static str },
    #[error("no command to run")]
    NoCommand,
}

impl SpecError {
    pub fn hints(&self) -> Vec<String> {
        match self {
            Self::WorkspaceOverMemory { .. } => {
                vec!["the workspace lives in memory: raise --memory, or lower --workspace".into()]
            }
            Self::Volume { .. } => vec!["write a volume as HOST:GUEST[:ro|rw], both plain paths".into()],
            Self::NoCommand => vec!["put the command after `--`".into()],
            _ => Vec::new(),
        }
    }
}
