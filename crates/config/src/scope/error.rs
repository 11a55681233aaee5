//! Errors of scopes, with hints.

use std::path::PathBuf;

use super::capability;
use super::roots::OutsideAllowedRoots;

#[derive(Debug, thiserror::Error)]
pub enum ScopeError {
    #[error("cannot read the scope file {}", path.display())]
    Unreadable { path: PathBuf, source: std::io::Error },
    /// Another user may have read or written the file.
    #[error("scope file {} {problem}", path.display())]
    Untrusted { path: PathBuf, problem: String, hint: String },
    /// The file contains another scope than the one that the endpoint was started with.
    #[error("scope file {} has changed since this endpoint was started", path.display())]
    Changed { path: PathBuf },
    #[error("invalid scope file {}: {problem}", path.display())]
    Malformed { path: PathBuf, problem: String },
    #[error("scope file {} contains the unknown capability `{name}`", path.display())]
    UnknownCapability { path: PathBuf, name: String },
    #[error("{field} in scope file {}: {problem}", path.display())]
    Directory { path: PathBuf, field: &'static str, problem: String, hint: &'static str },
    /// The configuration mounts a directory that the scope does not allow.
    #[error(transparent)]
    OutsideAllowedRoots(#[from] OutsideAllowedRoots),
}

impl ScopeError {
    pub fn hints(&self) -> Vec<String> {
        vec![match self {
            Self::Unreadable { .. } => "check the path and its permissions".into(),
            Self::Untrusted { hint, .. } => hint.clone(),
            Self::Changed { .. } => {
                "the scope of an endpoint cannot change: restore the file, or start a new endpoint".into()
            }
            Self::Malformed { .. } => "docs/scopes.md lists the fields of a scope; others are not allowed".into(),
            Self::UnknownCapability { name, .. } => capability::hint(name),
            Self::Directory { hint, .. } => (*hint).into(),
            Self::OutsideAllowedRoots(_) => OutsideAllowedRoots::HINT.into(),
        }]
    }
}
