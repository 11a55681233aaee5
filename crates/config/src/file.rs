//! The shape of the configuration file. What is left out has a default, or no limit.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use ringfence_core::Weakness;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer};

use super::code::CodeConfig;
use super::profiles::ProfileConfig;
use super::servers::ServerEntryConfig;
use super::size::ByteSize;
use ringfence_core::Language;

/// The configuration of ringfence.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(title = "ringfence.toml")]
pub struct Config {
    pub server: ServerConfig,
    pub sessions: SessionsConfig,
    /// Sizes of sandboxes by name: new ones, or changes to small, medium and large.
    pub flavors: BTreeMap<String, FlavorConfig>,
    /// What sandboxes are for, by name: new ones, or changes to python, node and bash.
    pub templates: BTreeMap<String, TemplateConfig>,
    pub code: CodeConfig,
    pub hosting: HostingConfig,
    /// MCP servers that are hosted or reached, by name.
    pub servers: BTreeMap<String, ServerEntryConfig>,
    /// What is offered at /mcp/NAME, by name.
    pub profiles: BTreeMap<String, ProfileConfig>,
    pub log: LogConfig,
}

/// How MCP is served over HTTP.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ServerConfig {
    /// The address to listen on, or `localhost`.
    #[serde(deserialize_with = "address")]
    #[schemars(with = "Option<String>")]
    pub host: Option<IpAddr>,
    /// The port; 0 for any that is free.
    pub port: Option<u16>,
    /// Let web pages of this host call it.
    pub enable_cors: Option<bool>,
    /// Without tokens, let every user of this host connect: otherwise only the user who runs the server, and root.
    pub allow_local_users: Option<bool>,
    /// Names besides the loopback ones by which the server may be called, and whose pages may call it.
    pub allowed_hosts: Option<Vec<String>>,
    /// The profile at /mcp and over stdio: one of [profiles.NAME], or `code`; everything unless given.
    pub profile: Option<String>,
    /// How many requests are worked on at once; one more is told to try again.
    pub max_concurrent_requests: Option<Count>,
    /// How many connections there may be at once; one more is told to try again.
    pub max_connections: Option<Count>,
    /// How long a call may take in all: waiting for its turn, a session or server that starts, and its run.
    pub request_timeout_s: Option<Seconds>,
    /// How long requests under way may still take once the server is told to end with SIGTERM.
    pub drain_timeout_s: Option<Seconds>,
    /// How long clients wait for an answer. Nothing here waits so long; it is what the other times must stay below.
    pub client_timeout_s: Option<Seconds>,
    /// Bearer tokens by the name of their holder. With any, every request needs one.
    pub tokens: BTreeMap<String, TokenConfig>,
}

/// Where the secret of a token is: in a variable or in a file, never in the configuration itself.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TokenConfig {
    /// The environment variable that holds the secret.
    pub env: Option<String>,
    /// The file that holds the secret.
    pub file: Option<PathBuf>,
}

/// What sessions may be and have.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SessionsConfig {
    /// The template of a session that names none.
    pub default_template: Option<String>,
    /// The flavor of a session that names none.
    pub default_flavor: Option<String>,
    /// The time limit of a call that names none.
    pub timeout_s: Option<Seconds>,
    /// The longest time limit that a call may ask for.
    pub max_timeout_s: Option<Seconds>,
    /// How many sessions there may be at once.
    pub max_sessions: Option<Count>,
    /// How many of them one principal may have. Where there are several tokens, three quarters of `max_sessions` unless
    /// given.
    pub max_sessions_per_principal: Option<Count>,
    /// The memory limits of all sessions together.
    pub max_total_memory: Option<ByteSize>,
    /// How many calls may wait for their turn in one session; one more is told to try again.
    pub max_queued_calls: Option<Count>,
    /// A session that is not used for so long ends.
    pub idle_timeout_s: Option<Seconds>,
    /// A session that is so old ends, used or not.
    pub max_age_s: Option<Seconds>,
    /// At a limit, end the least recently used idle session instead of refusing the new one.
    pub evict_idle: Option<bool>,
    /// How long a session outlives a server that no longer renews it.
    pub lease_s: Option<Seconds>,
    /// Directories and files of the host, as HOST:GUEST[:ro|rw]; read-only unless `rw`.
    pub volumes: Option<Vec<String>>,
    /// In read-write volumes, of sessions and of hosted servers, hold protected names that do not exist yet, and keep
    /// repositories read-only.
    pub strict_volumes: Option<bool>,
    /// Weaknesses of the host that are acceptable.
    pub accept: Option<Vec<WeaknessConfig>>,
    /// Sandboxes that wait ready, by template; up to 12 more for a minute after there were too few.
    pub pool: Option<BTreeMap<String, usize>>,
    /// Python modules that are imported before a session asks for them.
    pub preload: Option<Vec<String>>,
    /// Where sessions and the audit are kept.
    pub state_dir: Option<PathBuf>,
}

/// The size of a sandbox.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FlavorConfig {
    pub cpus: Option<f64>,
    pub memory: Option<ByteSize>,
    /// Processes and threads together.
    pub pids: Option<u32>,
    /// Open files of each process; at most 512 in a sandbox that runs with the uid of the server.
    pub open_files: Option<u32>,
    /// All that is written to /workspace, /tmp and /dev/shm; half of the memory unless given.
    pub workspace: Option<ByteSize>,
    /// Files and directories there.
    pub workspace_inodes: Option<u64>,
}

/// What a sandbox is for.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TemplateConfig {
    pub language: Option<LanguageConfig>,
    /// A directory with a root file system; without one the sandbox is shown the host's /usr.
    pub root: Option<PathBuf>,
    /// An OCI image on disk in place of a root: a layout directory, or a tar archive of one. Its variables are beneath
    /// those of `env`.
    pub image: Option<PathBuf>,
    /// Variables of every process in it.
    pub env: BTreeMap<String, String>,
}

/// Where further servers come from.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct HostingConfig {
    /// Files in the `mcpServers` shape of clients; read again when they change.
    pub files: Option<Vec<String>>,
    /// Also host what clients of this user are configured with in the home, without a `ringfence server import`.
    pub import: Option<bool>,
    /// Accept what a server offers when it is first connected, as `ringfence server pin` does; later changes are held
    /// back.
    pub pin_on_first_use: Option<bool>,
    /// Hosts that installations may reach besides the registries that this machine is set to, as `HOST[:PORT][+private]`.
    pub install_allow: Option<Vec<String>>,
}

/// What is logged on standard error.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LogConfig {
    pub level: Option<LogLevel>,
    pub format: Option<LogFormat>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LanguageConfig {
    Python,
    Node,
    Bash,
}

impl From<LanguageConfig> for Language {
    fn from(language: LanguageConfig) -> Self {
        match language {
            LanguageConfig::Python => Self::Python,
            LanguageConfig::Node => Self::Node,
            LanguageConfig::Bash => Self::Bash,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum WeaknessConfig {
    Cgroup,
    OwnUid,
    Landlock,
}

impl From<WeaknessConfig> for Weakness {
    fn from(weakness: WeaknessConfig) -> Self {
        match weakness {
            WeaknessConfig::Cgroup => Self::Cgroup,
            WeaknessConfig::OwnUid => Self::OwnUid,
            WeaknessConfig::Landlock => Self::Landlock,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

impl LogLevel {
    pub fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LogFormat {
    Text,
    Json,
}

/// A time in whole seconds, from one to a year.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize, JsonSchema)]
#[serde(try_from = "u64")]
#[schemars(extend("minimum" = 1, "maximum" = Seconds::MOST))]
pub struct Seconds(u64);

impl Seconds {
    const MOST: u64 = 365 * 86_400;

    pub(super) fn duration(self) -> std::time::Duration {
        std::time::Duration::from_secs(self.0)
    }
}

impl TryFrom<u64> for Seconds {
    type Error = String;

    fn try_from(seconds: u64) -> Result<Self, String> {
        let possible = (1..=Self::MOST).contains(&seconds);
        if possible { Ok(Self(seconds)) } else { Err(format!("{seconds} is not a time between 1 second and a year")) }
    }
}

/// How many there may be: at least one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize, JsonSchema)]
#[serde(try_from = "u64")]
#[schemars(extend("minimum" = 1, "maximum" = Count::MOST))]
pub struct Count(u64);

impl Count {
    /// More than any host holds.
    const MOST: u64 = 1_000_000;

    #[allow(clippy::cast_possible_truncation)]
    pub(super) fn get(self) -> usize {
        self.0 as usize
    }
}

impl TryFrom<u64> for Count {
    type Error = String;

    fn try_from(count: u64) -> Result<Self, String> {
        let possible = (1..=Self::MOST).contains(&count);
        if possible { Ok(Self(count)) } else { Err(format!("{count} is not a number between 1 and a million")) }
    }
}

fn address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<IpAddr>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    text.map(|text| host(&text)).transpose().map_err(serde::de::Error::custom)
}

/// An address, or the one name that is always the same.
pub fn host(text: &str) -> Result<IpAddr, String> {
    if text.eq_ignore_ascii_case("localhost") {
        return Ok(IpAddr::from([127, 0, 0, 1]));
    }
    text.parse().map_err(|_| format!("`{text}` is no IP address, nor `localhost`"))
}
