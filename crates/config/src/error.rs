//! Errors of the configuration, with hints.

use std::path::PathBuf;

use crate::origin::Origin;
use crate::secret_store::SecretStoreError;

#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read the configuration file {}", path.display())]
    Unreadable { path: PathBuf, source: std::io::Error },
    /// A key or value that is invalid by itself.
    #[error("{origin}: {problem}")]
    Invalid { origin: Origin, problem: String, hint: Option<String> },
    /// Values that contradict each other.
    #[error("{problem}")]
    Conflict { problem: String, hint: String },
    #[error("cannot read the secret of token `{name}`: {problem}")]
    Secret { name: String, problem: String },
    #[error("cannot read the value of secret `{name}`: {problem}")]
    SecretValue { name: String, problem: String },
    #[error(transparent)]
    SecretStore(#[from] SecretStoreError),
    /// A configuration file that appeared in the working directory while guests could write there.
    #[error("a guest may have written {}: {} was a read-write volume", path.display(), volume.display())]
    GuestWritten { path: PathBuf, volume: PathBuf },
    #[error("no state directory: neither XDG_STATE_HOME nor HOME is set")]
    NoStateDirectory,
}

impl ConfigError {
    pub fn hints(&self) -> Vec<String> {
        match self {
            Self::Unreadable { .. } => vec!["check the path and its permissions".into()],
            Self::Invalid { hint, .. } => hint.iter().cloned().collect(),
            Self::Conflict { hint, .. } => vec![hint.clone()],
            Self::Secret { .. } => vec!["provide a long random secret, or remove the token".into()],
            Self::SecretValue { name, .. } => vec![format!("provide the value, or remove [secrets.{name}]")],
            Self::SecretStore(error) => vec![error.hint()],
            Self::GuestWritten { path, .. } => {
                vec![format!(
                    "review the file; then pass it with `--config {0}` or RINGFENCE_CONFIG, or delete it",
                    path.display()
                )]
            }
            Self::NoStateDirectory => vec!["set RINGFENCE_STATE_DIR or sessions.state_dir".into()],
        }
    }
}
