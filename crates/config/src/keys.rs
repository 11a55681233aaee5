//! The keys that the environment can set: every variable that ringfence reads is declared here, once.
//!
//! A key has the variable `RINGFENCE_` and its own name; some have shorter ones, and older ones of the programs that
//! ringfence takes the place of.

use toml::Value;

use super::error::ConfigError;
use super::find::Environment;
use super::origin::Origin;
use super::values::Values;
use ringfence_core::suggest::closest;

/// How the text of a variable is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reads {
    Text,
    Number,
    Fraction,
    Switch,
    /// A word, in any case.
    Word,
    /// A word, or one that Python has for it.
    Level,
    /// A JSON list, or names with commas between.
    List,
    Megabytes,
    /// `NAME=NUMBER` with commas between.
    Counts,
    /// The variable is itself the secret of the token that is called `token`.
    Secret,
}

pub(super) struct Key {
    pub(super) name: &'static str,
    reads: Reads,
    aliases: &'static [&'static str],
}

const fn key(name: &'static str, reads: Reads, aliases: &'static [&'static str]) -> Key {
    Key { name, reads, aliases }
}

/// The token that a variable sets.
pub(super) const TOKEN: &str = "server.tokens.token";

/// Variables of another program that are looked at, and stand for no key of ours.
pub(super) const IMAGE: &str = "MCP_BRIDGE_IMAGE";
pub(super) const RUNTIME: &str = "MCP_BRIDGE_RUNTIME";
/// What the variables of ringfence itself begin with.
const OWN: &str = "RINGFENCE_";

pub(super) const KEYS: [Key; 46] = [
    key("server.host", Reads::Text, &["RINGFENCE_HOST", "MCP_SERVER_HOST"]),
    key("server.port", Reads::Number, &["RINGFENCE_PORT", "MCP_SERVER_PORT"]),
    key("server.enable_cors", Reads::Switch, &["MCP_ENABLE_CORS"]),
    key("server.allow_local_users", Reads::Switch, &["RINGFENCE_ALLOW_LOCAL_USERS"]),
    key("server.allowed_hosts", Reads::List, &[]),
    key("server.profile", Reads::Text, &["RINGFENCE_PROFILE"]),
    key("server.max_concurrent_requests", Reads::Number, &[]),
    key("server.max_connections", Reads::Number, &[]),
    key("server.request_timeout_s", Reads::Number, &[]),
    key("server.drain_timeout_s", Reads::Number, &[]),
    key("server.client_timeout_s", Reads::Number, &[]),
    key(TOKEN, Reads::Secret, &["RINGFENCE_AUTH_TOKEN", "MCP_AUTH_TOKEN", "MSB_API_KEY"]),
    key("sessions.default_template", Reads::Text, &[]),
    key("sessions.default_flavor", Reads::Text, &["MSB_DEFAULT_FLAVOR"]),
    key("sessions.timeout_s", Reads::Number, &[]),
    key("sessions.max_timeout_s", Reads::Number, &[]),
    key("sessions.max_sessions", Reads::Number, &["RINGFENCE_MAX_SESSIONS", "MSB_MAX_SESSIONS"]),
    key("sessions.max_sessions_per_principal", Reads::Number, &[]),
    key("sessions.max_total_memory", Reads::Text, &[]),
    key("sessions.max_total_memory", Reads::Megabytes, &["MSB_MAX_TOTAL_MEMORY_MB"]),
    key("sessions.max_queued_calls", Reads::Number, &[]),
    key("sessions.idle_timeout_s", Reads::Number, &["MSB_SESSION_TIMEOUT"]),
    key("sessions.max_age_s", Reads::Number, &[]),
    key("sessions.evict_idle", Reads::Switch, &[]),
    key("sessions.lease_s", Reads::Number, &[]),
    key("sessions.volumes", Reads::List, &["MSB_SHARED_VOLUME_PATH"]),
    key("sessions.strict_volumes", Reads::Switch, &[]),
    key("sessions.accept", Reads::List, &[]),
    key("sessions.pool", Reads::Counts, &[]),
    key("sessions.preload", Reads::List, &[]),
    key("sessions.state_dir", Reads::Text, &["RINGFENCE_STATE_DIR", "MCP_BRIDGE_STATE_DIR"]),
    key("code.timeout_s", Reads::Number, &["MCP_BRIDGE_TIMEOUT"]),
    key("code.max_timeout_s", Reads::Number, &["MCP_BRIDGE_MAX_TIMEOUT"]),
    key("code.memory", Reads::Text, &["MCP_BRIDGE_MEMORY"]),
    key("code.pids", Reads::Number, &["MCP_BRIDGE_PIDS"]),
    key("code.cpus", Reads::Fraction, &["MCP_BRIDGE_CPUS"]),
    key("code.template", Reads::Text, &[]),
    key("code.output_mode", Reads::Word, &["MCP_BRIDGE_OUTPUT_MODE"]),
    key("code.calls_per_server", Reads::Number, &[]),
    key("code.call_timeout_s", Reads::Number, &[]),
    key("hosting.files", Reads::List, &["MCP_SERVERS_CONFIG"]),
    key("hosting.import", Reads::Switch, &[]),
    key("hosting.install_allow", Reads::List, &[]),
    key("hosting.pin_on_first_use", Reads::Switch, &[]),
    key("log.level", Reads::Level, &["RINGFENCE_LOG", "MCP_BRIDGE_LOG_LEVEL"]),
    key("log.format", Reads::Text, &[]),
];

impl Key {
    /// The variables that set it, the strongest first.
    pub(super) fn variables(&self) -> impl Iterator<Item = String> {
        let own = format!("RINGFENCE_{}", self.name.replace('.', "_").to_uppercase());
        let own = (!matches!(self.reads, Reads::Secret | Reads::Megabytes)).then_some(own);
        own.into_iter().chain(self.aliases.iter().map(ToString::to_string))
    }

    fn read(&self, text: &str) -> Result<Vec<(&'static str, Value)>, String> {
        let one = |value| Ok(vec![(self.name, value)]);
        match self.reads {
            Reads::Text => one(text.into()),
            Reads::Number => one(number(text)?.into()),
            Reads::Fraction => one(fraction(text)?.into()),
            Reads::Word => one(text.trim().to_lowercase().into()),
            Reads::Level => one(level(text).into()),
            Reads::Switch => one(switch(text)?.into()),
            Reads::List => one(list(text)?.into()),
            Reads::Megabytes => one(format!("{}M", number(text)?).into()),
            Reads::Counts | Reads::Secret => Ok(Vec::new()),
        }
    }
}

/// Names the configuration file.
pub const FILE_VARIABLE: &str = "RINGFENCE_CONFIG";

/// Those of ringfence that are read elsewhere, and stand for no key.
const OTHERS: [&str; 8] = [
    "RINGFENCE_ALLOW_SELF_SERVER",
    "RINGFENCE_CACHE_DIR",
    "RINGFENCE_SCOPE_DIGEST",
    "RINGFENCE_SCOPE_FILE",
    "RINGFENCE_SERVER",
    "RINGFENCE_SUPERVISOR_ID",
    "RINGFENCE_SUPERVISOR_PID",
    "RINGFENCE_ZYGOTE_LIBRARY",
];

/// Variables that look like ours and set nothing, with what was probably meant.
pub(super) fn misspelt(environment: &Environment) -> Vec<String> {
    let known: Vec<String> = KEYS.iter().flat_map(Key::variables).chain([FILE_VARIABLE.to_owned()]).collect();
    let ours = || known.iter().filter_map(|name| name.strip_prefix(OWN));
    let is_known = |name: &str| OTHERS.contains(&name) || known.iter().any(|known| known == name);
    let unknown = environment.names().filter(|name| !is_known(name));
    let meant = |name: &str| closest(name.strip_prefix(OWN)?, ours()).map(str::to_owned);
    unknown.filter_map(|name| Some(format!("{name} is ignored: did you mean {OWN}{}?", meant(name)?))).collect()
}

/// What the environment sets.
pub(super) fn from_environment(environment: &Environment) -> Result<Values, ConfigError> {
    let mut values = Values::default();
    // From the last to the first, since an earlier one of the same key is stronger.
    for key in KEYS.iter().rev() {
        let set = key.variables().find_map(|name| {
            let text = environment.get(&name)?;
            // Those of other programs are often set to nothing, and mean nothing then.
            (name.starts_with(OWN) || !text.trim().is_empty()).then_some((name, text))
        });
        let Some((name, text)) = set else { continue };
        let origin = Origin::Variable(name.clone());
        let wrong = |problem| ConfigError::Wrong { origin: origin.clone(), problem, hint: None };
        let parts = |key: &str| key.split('.').map(Into::into).collect::<Vec<String>>();
        let mut given = Values::default();
        match key.reads {
            Reads::Secret => given.set(parts(&format!("{TOKEN}.env")), name.as_str().into(), origin.clone()),
            Reads::Counts => {
                for (template, count) in counts(text).map_err(wrong)? {
                    let mut path = parts(key.name);
                    path.push(template);
                    given.set(path, count.into(), origin.clone());
                }
            }
            _ => {
                for (key, value) in key.read(text).map_err(wrong)? {
                    given.set(parts(key), value, origin.clone());
                }
            }
        }
        given.config().map_err(wrong)?;
        values.overlay(given);
    }
    Ok(values)
}

fn number(text: &str) -> Result<i64, String> {
    text.trim().parse().map_err(|_| format!("`{text}` is not a whole number"))
}

fn fraction(text: &str) -> Result<f64, String> {
    text.trim().parse().map_err(|_| format!("`{text}` is not a number"))
}

/// A level of the log, by its own name or by one that Python has for it.
pub fn level(text: &str) -> String {
    let word = text.trim().to_lowercase();
    match word.as_str() {
        "warning" => "warn".into(),
        "critical" | "fatal" => "error".into(),
        "notset" => "trace".into(),
        _ => word,
    }
}

fn switch(text: &str) -> Result<bool, String> {
    match text.trim().to_ascii_lowercase().as_str() {
        "true" | "1" | "yes" | "on" => Ok(true),
        "false" | "0" | "no" | "off" => Ok(false),
        _ => Err(format!("`{text}` is neither true nor false")),
    }
}

fn list(text: &str) -> Result<Vec<String>, String> {
    if text.trim_start().starts_with('[') {
        return serde_json::from_str(text).map_err(|error| format!("it is not a JSON list of strings: {error}"));
    }
    Ok(text.split(',').map(str::trim).filter(|name| !name.is_empty()).map(Into::into).collect())
}

fn counts(text: &str) -> Result<Vec<(String, i64)>, String> {
    let read = |part: &str| {
        let (name, count) = part.split_once('=').ok_or_else(|| format!("`{part}` is not TEMPLATE=NUMBER"))?;
        Ok((name.trim().to_owned(), number(count)?))
    };
    text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(read).collect()
}
