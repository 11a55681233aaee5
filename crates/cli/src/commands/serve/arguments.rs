//! The command line of `ringfence serve`, which `ringfence up` accepts too.
#![allow(clippy::doc_markdown)] // the doc comments of arguments are the text of `--help`

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use ringfence_config::{Flag, parse_volume};
use ringfence_mcp::connection::ConnectionName;

use crate::options::parse_rule;

/// Serve sandbox sessions to agents over MCP.
///
/// By default the server listens on http://127.0.0.1:8000/mcp. With --stdio it serves one client on its standard input
/// and output, for clients that start their servers themselves. Ctrl-C ends the server and its sessions, except the default
/// sessions of --session.
///
/// Precedence: flag, environment variable, configuration file, default. `ringfence config show` prints the values in
/// effect.
///
/// Without a token, only root and the user who runs the server may connect, and only on loopback. To listen on another
/// address, set a token of at least 16 bytes: [server.tokens.NAME] in the configuration file, or RINGFENCE_AUTH_TOKEN (or
/// MCP_AUTH_TOKEN).
#[derive(Args)]
#[allow(clippy::struct_excessive_bools)] // each is a flag
pub(crate) struct Arguments {
    /// The configuration file [default: ringfence.toml in the current directory, or in ~/.config/ringfence] [env:
    /// RINGFENCE_CONFIG]
    #[arg(long, value_name = "FILE")]
    pub(in crate::commands) config: Option<PathBuf>,
    /// The address to listen on [default: 127.0.0.1] [env: RINGFENCE_HOST, MCP_SERVER_HOST]
    #[arg(long, value_parser = ringfence_config::parse_host)]
    host: Option<IpAddr>,
    /// The port to listen on; 0 for any free port [default: 8000] [env: RINGFENCE_PORT, MCP_SERVER_PORT]
    #[arg(long)]
    port: Option<u16>,
    /// Serve one client on standard input and output instead of HTTP
    #[arg(long, conflicts_with_all = ["host", "port"])]
    pub(in crate::commands) stdio: bool,
    /// Retain the default sessions of --stdio under this name for the next process with the same name [1 to 64 letters, digits, `-`, `_` and `.`]
    #[arg(long, value_name = "NAME", requires = "stdio", conflicts_with_all = ["host", "port"])]
    pub(in crate::commands) session: Option<ConnectionName>,
    /// The profile that clients get at /mcp and over stdio: `code` for code that calls tools, or one of [profiles.NAME]
    /// [default: everything] [env: RINGFENCE_PROFILE]
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
    /// Serve a single run, limited by this scope file (mode 0600): the tools that may be called and the directories that
    /// are mounted. The file is removed at the end [capabilities: code, command, files.read, files.write, sessions,
    /// servers, memory] [env: RINGFENCE_SCOPE_FILE, whose file is not removed]
    #[arg(long, value_name = "FILE")]
    pub(in crate::commands) scope: Option<PathBuf>,
    /// Allow web pages served from this host to call the server
    #[arg(long)]
    enable_cors: bool,
    /// Without a token, allow every user of this host to connect on loopback [env: RINGFENCE_ALLOW_LOCAL_USERS]
    #[arg(long)]
    allow_local_users: bool,
    /// Listen without a token on an address that other hosts can reach
    #[arg(long)]
    pub(super) insecure_no_auth: bool,
    /// Mount a directory or file of the host in every session, read-only unless `rw` is given. Replaces the volumes of
    /// the configuration file
    #[arg(long = "volume", short = 'v', value_name = "HOST:GUEST[:ro|rw]", value_parser = volume)]
    volumes: Vec<String>,
    /// Allow sessions to connect to a host: a name, *.DOMAIN or an address; may be repeated. Replaces the list of the
    /// configuration file [env: RINGFENCE_SESSIONS_ALLOW]
    #[arg(long, value_name = "HOST[:PORT][+private]", value_parser = rule)]
    allow: Vec<String>,
    /// Maximum number of sessions at the same time [default: 64] [env: RINGFENCE_MAX_SESSIONS, MSB_MAX_SESSIONS]
    #[arg(long)]
    max_sessions: Option<u32>,
    /// The level of the log on standard error: error, warn, info, debug or trace [default: info]
    #[arg(long, value_parser = level)]
    log_level: Option<tracing::Level>,
    /// The format of the log [default: text]
    #[arg(long, value_enum)]
    log_format: Option<LogFormatOption>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LogFormatOption {
    Text,
    Json,
}

fn level(text: &str) -> Result<tracing::Level, String> {
    ringfence_config::normalize_log_level(text)
        .parse()
        .map_err(|_| format!("unknown level `{text}`; use error, warn, info, debug or trace"))
}

/// Checks a volume here for a better error message. The configuration parses the text again.
fn volume(text: &str) -> Result<String, String> {
    parse_volume(text).map(|_| text.to_owned())
}

/// Checks a rule here for a better error message. The configuration parses the text again.
fn rule(text: &str) -> Result<String, String> {
    parse_rule(text).map(|_| text.to_owned())
}

impl Arguments {
    /// Returns the given flags with the configuration keys that they set.
    pub(in crate::commands) fn flags(&self) -> Vec<Flag> {
        let format = self.log_format.map(|format| match format {
            LogFormatOption::Text => "text",
            LogFormatOption::Json => "json",
        });
        let level = self.log_level.map(|level| level.as_str().to_lowercase());
        let allow = (!self.allow.is_empty()).then(|| self.allow.clone());
        let volumes = (!self.volumes.is_empty()).then(|| self.volumes.clone());
        [
            self.host.map(|host| Flag::new("--host", "server.host", host.to_string())),
            self.port.map(|port| Flag::new("--port", "server.port", i64::from(port))),
            self.profile.clone().map(|profile| Flag::new("--profile", "server.profile", profile)),
            self.allow_local_users.then(|| Flag::new("--allow-local-users", "server.allow_local_users", true)),
            self.enable_cors.then(|| Flag::new("--enable-cors", "server.enable_cors", true)),
            volumes.map(|volumes| Flag::new("--volume", "sessions.volumes", volumes)),
            allow.map(|allow| Flag::new("--allow", "sessions.allow", allow)),
            self.max_sessions.map(|max| Flag::new("--max-sessions", "sessions.max_sessions", i64::from(max))),
            level.map(|level| Flag::new("--log-level", "log.level", level)),
            format.map(|format| Flag::new("--log-format", "log.format", format)),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}
