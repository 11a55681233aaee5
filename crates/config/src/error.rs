//! What is wrong with a configuration, where, and what to do about it.

use std::path::PathBuf;

use super::origin::Origin;

#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read the configuration {}", path.display())]
    Unreadable { path: PathBuf, source: std::io::Error },
    /// A value or key that makes no sense by itself.
    #[error("{origin}: {problem}")]
    Wrong { origin: Origin, problem: String, hint: Option<String> },
    /// Values that make no sense together.
    #[error("{problem}")]
    Conflict { problem: String, hint: String },
    #[error("the token of {name} has no secret: {problem}")]
    Secret { name: String, problem: String },
    /// A configuration in the working directory that appeared while guests could write there.
    #[error("{} may have been written by a guest: {} was a read-write volume", path.display(), volume.display())]
    GuestWritten { path: PathBuf, volume: PathBuf },
    #[error("there is no place for the state: neither XDG_STATE_HOME nor HOME is set")]
    NoStateDirectory,
}

impl ConfigError {
    pub fn hints(&self) -> Vec<String> {
        match self {
            Self::Unreadable { .. } => vec!["check the path and who may read it".into()],
            Self::Wrong { hint, .. } => hint.iter().cloned().collect(),
            Self::Conflict { hint, .. } => vec![hint.clone()],
            Self::Secret { .. } => vec!["give it a long random secret, or remove the token".into()],
            Self::GuestWritten { path, .. } => {
                vec![format!(
                    "read it; then name it with `--config {0}` or RINGFENCE_CONFIG, or remove it",
                    path.display()
                )]
            }
            Self::NoStateDirectory => vec!["set RINGFENCE_STATE_DIR, or sessions.state_dir".into()],
        }
    }
}
