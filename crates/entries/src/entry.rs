//! The settings of one MCP server, with all defaults filled in.
//!
//! Fields have the names of their JSON keys, except `transport`, which combines `mode` and the keys of that mode, and
//! `sandbox_settings`, which is the key `box`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// One MCP server: a program to start here, or a remote server to connect to.
#[derive(Debug, Clone, PartialEq)]
pub struct ServerEntry {
    pub name: String,
    /// Does not change when the entry is edited. Processes and files of the server are named after it.
    pub uuid: String,
    pub enable: bool,
    pub description: Option<String>,
    pub transport: Transport,
    pub start: StartPolicy,
}

/// When an enabled server starts. The source of an entry decides that, not a key of the entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StartPolicy {
    /// As soon as its entry is known.
    #[default]
    AtOnce,
    /// When it is used for the first time.
    OnDemand,
}

/// The transport of a server, with its settings.
#[derive(Debug, Clone, PartialEq)]
pub enum Transport {
    /// A program that is started in a sandbox and speaks MCP on its standard streams.
    Stdio(Box<StdioSettings>),
    /// Streamable HTTP.
    Http(RemoteSettings),
    Sse(RemoteSettings),
    Websocket(RemoteSettings),
    /// Streamable HTTP, with SSE as fallback for servers that support only SSE.
    Remote(RemoteSettings),
}

impl Transport {
    /// The value of the JSON key `mode`.
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

/// A program to start. `${VAR}` and `${env:VAR}` in its strings are expanded when it starts.
#[derive(Debug, Clone, PartialEq)]
pub struct StdioSettings {
    pub command: String,
    pub args: Vec<String>,
    pub env: BTreeMap<String, String>,
    pub cwd: Option<PathBuf>,
    /// Whether the program runs in a sandbox. It runs on the host only if the entry says so.
    pub sandbox: bool,
    pub sandbox_settings: SandboxSettings,
}

/// The key `box` of an entry: the sandbox of one server.
#[derive(Debug, Clone, PartialEq)]
pub struct SandboxSettings {
    /// A directory with a root file system, instead of the host's `/usr`.
    pub image: Option<PathBuf>,
    /// Whether the installation of dependencies may use the network.
    pub network: bool,
    /// Hosts that the server itself may reach, as `HOST[:PORT][+private]`.
    pub allow: Vec<String>,
    /// The names of secrets of the configuration whose placeholders the server gets.
    pub secrets: Vec<String>,
    /// A directory of the host that the server may see.
    pub host_path: Option<PathBuf>,
    pub host_path_mode: HostPathMode,
    pub env: BTreeMap<String, String>,
    pub startup_timeout: Duration,
    pub cpus: Option<f64>,
    pub memory_mb: Option<u64>,
    pub pids_limit: Option<u32>,
    pub read_only_rootfs: bool,
    /// Whether the server runs in one sandbox together with all other servers that have this set.
    pub shared: bool,
}

/// The access of a server to its `host_path`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostPathMode {
    ReadOnly,
    ReadWrite,
}

/// A remote server. `${VAR}` in its strings is expanded when ringfence connects to it.
#[derive(Debug, Clone, PartialEq)]
pub struct RemoteSettings {
    pub url: String,
    pub headers: BTreeMap<String, String>,
    pub timeout: Duration,
    pub sse_read_timeout: Duration,
}

impl Default for SandboxSettings {
    fn default() -> Self {
        Self {
            image: None,
            network: true,
            allow: Vec::new(),
            secrets: Vec::new(),
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
    /// Creates the settings of a program without arguments, with defaults for everything else.
    pub fn new(command: impl Into<String>) -> Self {
        Self {
            command: command.into(),
            args: Vec::new(),
            env: BTreeMap::new(),
            cwd: None,
            sandbox: true,
            sandbox_settings: SandboxSettings::default(),
        }
    }
}

impl RemoteSettings {
    /// Creates the settings of a remote server, with defaults for everything else.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            headers: BTreeMap::new(),
            timeout: Duration::from_secs(10),
            sse_read_timeout: Duration::from_secs(30),
        }
    }
}
