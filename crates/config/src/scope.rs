//! The scope of a run: the capabilities and directories that one endpoint may use, from a file that an orchestrator
//! writes.
//!
//! A scope is read once, from a file that no other user can have read or written, and does not change while the server
//! runs. This module makes no decision about requests: `authorize` in the gateway does.

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
pub use roots::{Confinement, OutsideAllowedRoots};
pub use run::{ModelIdentity, Run};

use ringfence_core::Principal;

use crate::network::NetworkSettings;

/// The variable by which a supervisor passes the path of the scope file to a server.
pub const SCOPE_FILE_VARIABLE: &str = "RINGFENCE_SCOPE_FILE";

/// The variable by which a supervisor passes the digest of the scope. A server that finds a different scope in the file
/// does not start.
pub const SCOPE_DIGEST_VARIABLE: &str = "RINGFENCE_SCOPE_DIGEST";

/// The scope of one run.
#[derive(Debug, Clone, PartialEq)]
pub struct Scope {
    /// The identity of the run, for the audit and the log.
    pub run: Run,
    pub capabilities: BTreeSet<Capability>,
    pub confinement: Confinement,
    /// The upper limit of the network of sessions.
    pub network: NetworkSettings,
    /// Maximum time for running calls to finish when the server stops.
    pub drain_timeout: Duration,
    /// The only profile that is offered.
    pub profile: Option<String>,
    /// Identifies the sandboxes of the scope, so that a server never adopts sandboxes of another scope.
    pub tag: String,
    /// The SHA-256 digest of the file. The tag is its first characters.
    pub digest: String,
}

impl Scope {
    /// Reads and checks a scope file.
    pub fn load(path: &Path) -> Result<(Self, ScopeFile), ScopeError> {
        let (text, file) = file::read(path)?;
        Ok((document::parse(&text, path)?, file))
    }

    /// Refuses a scope that replaced the expected one in the file.
    pub fn check_digest(&self, expected: &str, file: &ScopeFile) -> Result<(), ScopeError> {
        if self.digest == expected { Ok(()) } else { Err(ScopeError::Changed { path: file.path().to_owned() }) }
    }

    pub fn allows(&self, capability: Capability) -> bool {
        self.capabilities.contains(&capability)
    }

    /// Returns the principal of a caller, which is a different one in each namespace of parallel workers.
    pub fn principal(&self, caller: Principal) -> Principal {
        match &self.run.worker_namespace {
            Some(namespace) => caller.in_namespace(namespace),
            None => caller,
        }
    }
}

#[cfg(test)]
mod tests;
