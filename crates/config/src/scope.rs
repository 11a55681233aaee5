//! A scope: what one endpoint may do for one run, given as a file by whoever starts it.
//!
//! It is read once, from a file that nobody else could have read or written, and holds for as long as the server runs.
//! `capability` names what can be allowed, `roots` binds what is shown of the host. It decides nothing itself: the
//! gateway's policy asks it.

mod capability;
mod document;
mod error;
mod file;
mod roots;
mod run;

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

pub use capability::Capability;
pub use error::ScopeError;
pub use file::ScopeFile;
pub use roots::{Confinement, OutOfRoots};
pub use run::{ModelIdentity, Run};

use ringfence_core::Principal;

/// The variable by which a supervisor tells a server of its scope.
pub const SCOPE_FILE_VARIABLE: &str = "RINGFENCE_SCOPE_FILE";

/// The variable by which it tells which scope that was: a server that finds another in the file does not start.
pub const SCOPE_DIGEST_VARIABLE: &str = "RINGFENCE_SCOPE_DIGEST";

/// What one endpoint may do.
#[derive(Debug, Clone, PartialEq)]
pub struct Scope {
    /// Whose work it is, for the audit and the log.
    pub run: Run,
    pub capabilities: BTreeSet<Capability>,
    pub confinement: Confinement,
    /// How long calls under way are awaited at the end.
    pub drain: Duration,
    /// The only profile that is offered.
    pub profile: Option<String>,
    /// Tells the sandboxes of one scope from those of another: they are never taken over by a server of another.
    pub tag: String,
    /// The SHA-256 of all of the file, of which the tag is the beginning.
    pub digest: String,
}

impl Scope {
    /// Reads and checks a scope; nothing is done yet.
    pub fn load(path: &Path) -> Result<(Self, ScopeFile), ScopeError> {
        let (text, file) = file::read(path)?;
        Ok((document::parse(&text, path)?, file))
    }

    /// Refuses one that has taken the place of the scope that was meant.
    pub fn check_digest(&self, meant: &str, file: &ScopeFile) -> Result<(), ScopeError> {
        if self.digest == meant { Ok(()) } else { Err(ScopeError::Changed { path: file.path().to_owned() }) }
    }

    pub fn has(&self, capability: Capability) -> bool {
        self.capabilities.contains(&capability)
    }

    /// Who a caller is here: one of its own in each namespace of parallel workers.
    pub fn principal(&self, caller: Principal) -> Principal {
        match &self.run.worker_namespace {
            Some(namespace) => caller.in_namespace(namespace),
            None => caller,
        }
    }
}

#[cfg(test)]
mod tests;
