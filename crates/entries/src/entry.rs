//! What is known of one server: plain data, resolved, with every default in place.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// A server that is hosted or reached.
#[derive(Debug, Clone, PartialEq)]
pub struct ServerEntry {
    pub name: String,
    /// Stays when the entry is edited; also names the server's process.
    pub uuid: String,
    pub enable: bool,
    pub description: Option<String>,
    pub reach: Reach,
}

/// How a server is spoken to.
#[derive(Debug, Clone, PartialEq)]
pub enum Reach {
    /// A program that is started here, in a sandbox.
    Stdio(StdioSettings),
    Http(RemoteSettings),
    Sse(RemoteSettings),
    Websocket(RemoteSettings),
    /// Streamable HTTP, or SSE where the other side knows only that.
    Remote(RemoteSettings),
}

impl Reach {
    /// The name of the mode in entries.
    pub fn mode(&self) -> &'static str {
        match self {
            Self::Stdio(_) => "stdio",
            Self::Http(_) => "http",
            Self::Sse(_) => "sse",
            Self::Websocket(_) => "websocket",
            Self::Remote(_) => "remote",
        }
    }
}

/// A program to start. `${VAR}` and `${env:VAR}` in its texts are expanded when it starts.
#[derive(Debug, Clone, PartialEq)]
pub struct StdioSettings {
    pub command: String,
    pub args: Vec<String>,
    pub env: BTreeMap<String, String>,
    pub cwd: Option<PathBuf>,
    /// Only an entry that says so itself is run on the host.
    pub sandbox: bool,
    pub sandbox_settings: BoxSettings,
}

/// The `box` of an entry: the walls around one server.
#[derive(Debug, Clone, PartialEq)]
pub struct BoxSettings {
    /// A directory with a root file system, in place of the host's /usr.
    pub image: Option<PathBuf>,
    /// Whether the installation of dependencies may use the network.
    pub network: bool,
    /// Hosts that the server itself may reach, as `HOST[:PORT][+private]`.
    pub allow: Vec<String>,
    pub host_path: Option<PathBuf>,
    pub host_path_mode: HostPathMode,
    pub env: BTreeMap<String, String>,
    pub startup_timeout: Duration,
    pub cpus: Option<f64>,
    pub memory_mb: Option<u64>,
    pub pids_limit: Option<u32>,
    pub read_only_rootfs: bool,
    /// Live in one sandbox with the other servers that ask for it.
    pub shared: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostPathMode {
    ReadOnly,
    ReadWrite,
}

/// A server elsewhere. `${VAR}` in its texts is expanded when it is connected.
#[derive(Debug, Clone, PartialEq)]
pub struct RemoteSettings {
    pub url: String,
    pub headers: BTreeMap<String, String>,
    pub timeout: Duration,
    pub sse_read_timeout: Duration,
}

impl Default for BoxSettings {
    fn default() -> Self {
        Self {
            image: None,
            network: true,
            allow: Vec::new(),
            host_path: None,
            host_path_mode: HostPathMode::ReadOnly,
            env: BTreeMap::new(),
            startup_timeout: Duration::from_secs(120),
            cpus: None,
            memory_mb: None,
            pids_limit: None,
            read_only_rootfs: true,
            shared: false,
        }
    }
}

impl StdioSettings {
    pub fn new(command: impl Into<String>) -> Self {
        Self {
            command: command.into(),
            args: Vec::new(),
            env: BTreeMap::new(),
            cwd: None,
            sandbox: true,
            sandbox_settings: BoxSettings::default(),
        }
    }
}

impl RemoteSettings {
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            headers: BTreeMap::new(),
            timeout: Duration::from_secs(10),
            sse_read_timeout: Duration::from_secs(30),
        }
    }
}
