//! Why a scope is refused, and what to do about it.

use std::path::PathBuf;

use super::capability;
use super::roots::OutOfRoots;

#[derive(Debug, thiserror::Error)]
pub enum ScopeError {
    #[error("the scope {} cannot be read", path.display())]
    Unreadable { path: PathBuf, source: std::io::Error },
    /// It is not a file that only its user can have written.
    #[error("the scope {} {problem}", path.display())]
    Untrusted { path: PathBuf, problem: String, hint: String },
    /// It is another than the one that the endpoint was started for.
    #[error("the scope {} is not the one that this endpoint was started for", path.display())]
    Changed { path: PathBuf },
    /// It does not say what a scope says.
    #[error("the scope {} does not hold: {problem}", path.display())]
    Malformed { path: PathBuf, problem: String },
    #[error("the scope {} names an unknown capability, `{name}`", path.display())]
    UnknownCapability { path: PathBuf, name: String },
    #[error("{field} of the scope {}: {problem}", path.display())]
    Directory { path: PathBuf, field: &'static str, problem: String, hint: &'static str },
    /// The configuration shows more of the host than the scope allows.
    #[error(transparent)]
    OutOfRoots(#[from] OutOfRoots),
}

impl ScopeError {
    pub fn hints(&self) -> Vec<String> {
        vec![match self {
            Self::Unreadable { .. } => "check the path, and who may read it".into(),
            Self::Untrusted { hint, .. } => hint.clone(),
            Self::Changed { .. } => "a scope holds for as long as its endpoint: leave the file as it was, or start a new endpoint for another".into(),
            Self::Malformed { .. } => "docs/scopes.md lists what stands in a scope; nothing else may".into(),
            Self::UnknownCapability { name, .. } => capability::advice(name),
            Self::Directory { hint, .. } => (*hint).into(),
            Self::OutOfRoots(_) => OutOfRoots::HINT.into(),
        }]
    }
}
