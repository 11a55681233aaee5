//! The options of a supervisor.

use std::ffi::OsString;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The socket of the endpoint.
#[derive(Debug)]
pub enum Listen {
    /// An address to listen on. Port 0 selects any free port.
    Address(SocketAddr),
    /// A socket that is already listening.
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

/// Receives the stderr of workers.
#[derive(Clone)]
pub struct WorkerLog(Arc<WriteFn>);

type WriteFn = dyn Fn(&[u8]) + Send + Sync;

impl WorkerLog {
    /// `write` must not block: it runs on the supervisor thread.
    pub fn new(write: impl Fn(&[u8]) + Send + Sync + 'static) -> Self {
        Self(Arc::new(write))
    }

    pub(crate) fn write(&self, bytes: &[u8]) {
        (self.0)(bytes);
    }
}

impl fmt::Debug for WorkerLog {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("WorkerLog")
    }
}

/// Returns the bearer token for probes. It is read again for each worker, since each worker reads its token file again.
#[derive(Clone)]
pub struct TokenSource(Arc<ReadFn>);

type ReadFn = dyn Fn() -> Option<String> + Send + Sync;

impl TokenSource {
    /// If `read` returns None, the last token is used.
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

/// The options of a [`Supervisor`](super::Supervisor).
pub struct Options {
    /// The `ringfence` program.
    pub program: PathBuf,
    /// The arguments of the worker, `serve` first, without a listening address.
    pub arguments: Vec<OsString>,
    /// Environment variables of the worker, in addition to those of this process.
    pub variables: Vec<(OsString, OsString)>,
    pub listen: Listen,
    /// The bearer token for probes, if workers require one.
    pub token: Option<TokenSource>,
    /// The worker's state directory. If it is set, [`stop`](super::Supervisor::stop) also ends the sandboxes of a worker
    /// that had to be killed; otherwise they end with their lease.
    pub state_directory: Option<PathBuf>,
    /// The scope file of the workers. The caller removes it at the end, since every worker reads it.
    pub scope_file: Option<PathBuf>,
    /// Tools that a worker must offer before it is ready.
    pub expected_tools: Vec<String>,
    pub max_restarts: u32,
    pub probe_interval: Duration,
    pub probe_timeout: Duration,
    pub preflight_timeout: Duration,
    /// Receives the stderr of workers. Without it only the last lines are stored.
    pub log: Option<WorkerLog>,
}

impl Options {
    /// Returns the defaults of `ringfence up`, on any free port of the loopback address.
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

/// Omits the token and the values of variables.
impl fmt::Debug for Options {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Options").field("program", &self.program).finish_non_exhaustive()
    }
}
