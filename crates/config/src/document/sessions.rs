//! `[sessions]`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use ringfence_core::Weakness;
use ringfence_entries::AllowEntry;
use schemars::JsonSchema;
use serde::Deserialize;

use super::units::{ByteSize, Count, Seconds};

/// Defaults and limits of sandbox sessions.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct SessionsConfig {
    /// The template of a session, unless the request names one.
    pub(crate) default_template: Option<String>,
    /// The flavor of a session, unless the request names one.
    pub(crate) default_flavor: Option<String>,
    /// The time limit of a call, unless the request sets one.
    pub(crate) timeout_s: Option<Seconds>,
    /// Maximum time limit that a request may set.
    pub(crate) max_timeout_s: Option<Seconds>,
    /// Maximum number of sessions.
    pub(crate) max_sessions: Option<Count>,
    /// Maximum number of sessions of one principal. With several tokens, the default is three quarters of
    /// `max_sessions`.
    pub(crate) max_sessions_per_principal: Option<Count>,
    /// Maximum sum of the memory limits of all sessions.
    pub(crate) max_total_memory: Option<ByteSize>,
    /// Maximum number of pieces of code, and of commands, that wait in one session; further calls fail immediately and can be retried.
    pub(crate) max_queued_calls: Option<Count>,
    /// Maximum size of the text of one result of a built-in tool. A longer text is shortened to its head and its tail.
    pub(crate) max_result_text: Option<ByteSize>,
    /// A session ends after this time without calls.
    pub(crate) idle_timeout_s: Option<Seconds>,
    /// A session ends at this age, whether it is in use or not.
    pub(crate) max_age_s: Option<Seconds>,
    /// At a limit, end the least recently used idle session instead of refusing the new one.
    pub(crate) evict_idle: Option<bool>,
    /// The time for which sessions survive the death of the server that owns them.
    pub(crate) lease_s: Option<Seconds>,
    /// Hosts that sessions may connect to, as `HOST[:PORT][+private]` or as tables with methods and paths.
    #[schemars(with = "Option<Vec<AllowEntry>>")]
    pub(crate) allow: Option<Vec<toml::Value>>,
    /// The secrets of every session: names of [secrets.NAME].
    pub(crate) secrets: Option<Vec<String>>,
    /// Whether the client of a session may permit further public hosts: the user in a dialog, or a token over REST.
    pub(crate) ask: Option<bool>,
    /// Directories and files of the host, as HOST:GUEST[:ro|rw]. They are read-only without `rw`.
    pub(crate) volumes: Option<Vec<String>>,
    /// In read-write volumes of sessions and hosted servers, create read-only placeholders for protected names that do
    /// not exist, and make repositories read-only.
    pub(crate) strict_volumes: Option<bool>,
    /// Accepted weaknesses of the host: protections that may be missing.
    pub(crate) accept: Option<Vec<WeaknessConfig>>,
    /// Number of sandboxes that are started in advance, by template. After a shortage there are up to 12 more for one
    /// minute.
    pub(crate) pool: Option<BTreeMap<String, usize>>,
    /// Python modules that are imported before a session starts.
    pub(crate) preload: Option<Vec<String>>,
    /// Return HTML that only repeats the text of a value, as that of tables, to all clients.
    pub(crate) rich_html: Option<bool>,
    /// The directory for sessions, servers and the audit log.
    pub(crate) state_dir: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum WeaknessConfig {
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
