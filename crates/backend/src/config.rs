//! The settings of a backend, which are the same for every kind of backend.

use std::path::PathBuf;
use std::time::Duration;

use crate::supervisor_id::SupervisorId;

/// The settings with which a backend creates instances.
#[derive(Debug, Clone)]
pub struct BackendConfig {
    /// The ringfence program, of which a backend may start helper processes.
    pub program: PathBuf,
    /// If it is `None`, all instances end with this process.
    pub persistence: Option<Persistence>,
    /// If it is `None`, Python starts cold in every instance.
    pub warm_python: Option<WarmPython>,
}

impl BackendConfig {
    /// A backend whose instances end with this process, and whose interpreters start cold.
    pub fn new(program: PathBuf) -> Self {
        Self { program, persistence: None, warm_python: None }
    }
}

/// Makes instances outlive a server that dies, so that the next server can adopt them.
#[derive(Debug, Clone)]
pub struct Persistence {
    /// The directory in which the next server looks for instances.
    pub directory: PathBuf,
    /// The tag of this server's scope, if it has one. Servers of another scope do not adopt its instances.
    pub scope_tag: Option<String>,
    /// The supervisor of this server, if it has one. While the supervisor lives, only its own servers adopt.
    pub supervisor: Option<SupervisorId>,
    /// The time that instances live without a server.
    pub lease: Duration,
}

/// The interpreter from which Python instances are forked.
#[derive(Debug, Clone)]
pub struct WarmPython {
    /// Executed on the host; see [`crate::interpreter::host_python`].
    pub program: PathBuf,
    /// Modules that are imported before the first fork.
    pub preload: Vec<String>,
}
