//! What is supervised, and how closely.

use std::ffi::OsString;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Where the endpoint is.
#[derive(Debug)]
pub enum Listen {
    /// Port 0 for any that is free.
    Address(SocketAddr),
    /// A socket that listens already.
    Socket(TcpListener),
}

impl Listen {
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        match self {
            Self::Address(address) => Ok(*address),
            Self::Socket(listener) => listener.local_addr(),
        }
    }
}

/// Takes what workers write to standard error, as it comes.
#[derive(Clone)]
pub struct WorkerLog(Arc<Take>);

type Take = dyn Fn(&[u8]) + Send + Sync;

impl WorkerLog {
    /// `take` must not block: the worker is not looked after meanwhile.
    pub fn new(take: impl Fn(&[u8]) + Send + Sync + 'static) -> Self {
        Self(Arc::new(take))
    }

    pub(crate) fn take(&self, bytes: &[u8]) {
        (self.0)(bytes);
    }
}

impl fmt::Debug for WorkerLog {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("WorkerLog")
    }
}

/// Gives the bearer token with which a worker is probed, for each worker anew: it may lie in a file that changes, and
/// every worker reads it for itself.
#[derive(Clone)]
pub struct TokenSource(Arc<Read>);

type Read = dyn Fn() -> Option<String> + Send + Sync;

impl TokenSource {
    /// While `read` gives none, the last that it gave is used.
    pub fn new(read: impl Fn() -> Option<String> + Send + Sync + 'static) -> Self {
        Self(Arc::new(read))
    }

    pub(crate) fn read(&self) -> Option<String> {
        (self.0)()
    }
}

impl From<String> for TokenSource {
    fn from(token: String) -> Self {
        Self::new(move || Some(token.clone()))
    }
}

/// What a [`Supervisor`](super::Supervisor) is started with.
pub struct Options {
    /// The `ringfence` program.
    pub program: PathBuf,
    /// Its arguments, `serve` first. Where it listens is not among them.
    pub arguments: Vec<OsString>,
    /// Variables of the worker beside those of this process.
    pub variables: Vec<(OsString, OsString)>,
    pub listen: Listen,
    /// The bearer token with which workers are probed, if they ask for one.
    pub token: Option<TokenSource>,
    /// The worker's state directory. With it, [`stop`](super::Supervisor::stop) also ends the sandboxes of a worker
    /// that had to be killed; without it they end with their lease.
    pub state_directory: Option<PathBuf>,
    /// The file of the scope that the worker is to serve within. Whoever gives it removes it at the end: every worker
    /// reads it.
    pub scope_file: Option<PathBuf>,
    /// Tools that must be offered before a worker is taken to be ready.
    pub expected_tools: Vec<String>,
    pub max_restarts: u32,
    pub probe_interval: Duration,
    pub probe_timeout: Duration,
    pub preflight_timeout: Duration,
    /// What workers write to standard error is dropped without one, but for its last lines.
    pub log: Option<WorkerLog>,
}

impl Options {
    /// On any free port of the loopback address, with the defaults of `ringfence up`.
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self {
            program: program.into(),
            arguments: vec!["serve".into()],
            variables: Vec::new(),
            listen: Listen::Address((Ipv4Addr::LOCALHOST, 0).into()),
            token: None,
            state_directory: None,
            scope_file: None,
            expected_tools: Vec::new(),
            max_restarts: 20,
            probe_interval: Duration::from_secs(2),
            probe_timeout: Duration::from_secs(5),
            preflight_timeout: Duration::from_secs(30),
            log: None,
        }
    }
}

/// Without the token and the values of variables.
impl fmt::Debug for Options {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Options").field("program", &self.program).finish_non_exhaustive()
    }
}
