//! The environment variables that set keys of the configuration.
//!
//! Every key has the variable `RINGFENCE_` plus its name. Some keys also have shorter names, and names that the programs
//! which ringfence replaces use. All variables that ringfence reads are declared here.

use toml::Value;

use super::Environment;
use crate::error::ConfigError;
use crate::origin::Origin;
use crate::values::{KeyPath, Values, key_path};
use ringfence_core::suggest::closest;

/// The format of a variable's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Text,
    Number,
    Fraction,
    Switch,
    /// A keyword in upper or lower case.
    Keyword,
    /// A log level, or Python's name of one.
    Level,
    /// A JSON list, or names separated by commas.
    List,
    Megabytes,
    /// `NAME=NUMBER`, separated by commas.
    CountTable,
    /// The variable contains the secret of the token `token`. Only its name becomes a value.
    Secret,
}

/// A key of the configuration that variables can set.
pub(crate) struct Key {
    pub(crate) name: &'static str,
    format: Format,
    aliases: &'static [&'static str],
}

const fn key(name: &'static str, format: Format, aliases: &'static [&'static str]) -> Key {
    Key { name, format, aliases }
}

/// The token whose secret a variable can contain.
const TOKEN_KEY: &str = "server.tokens.token";

/// Names an image that is used as a template; see the module `resolve`. It sets no key directly.
pub(crate) const IMAGE_VARIABLE: &str = "MCP_BRIDGE_IMAGE";

/// Names a container runtime, which ringfence does not need.
pub(crate) const RUNTIME_VARIABLE: &str = "MCP_BRIDGE_RUNTIME";

/// Contains the key of another sandbox server. It is often set on machines where no client of ringfence sends it, so it
/// is not a token.
const FOREIGN_KEY_VARIABLE: &str = "MSB_API_KEY";

/// Names the configuration file.
pub const CONFIG_FILE_VARIABLE: &str = "RINGFENCE_CONFIG";

/// The prefix of all variables that belong to ringfence.
const PREFIX: &str = "RINGFENCE_";

/// Variables with the prefix that other modules read and that set no key.
const OTHER_VARIABLES: [&str; 8] = [
    "RINGFENCE_ALLOW_SELF_SERVER",
    "RINGFENCE_CACHE_DIR",
    "RINGFENCE_SCOPE_DIGEST",
    "RINGFENCE_SCOPE_FILE",
    "RINGFENCE_SERVER",
    "RINGFENCE_SUPERVISOR_ID",
    "RINGFENCE_SUPERVISOR_PID",
    "RINGFENCE_ZYGOTE_LIBRARY",
];

pub(crate) const KEYS: [Key; 56] = [
    key("server.host", Format::Text, &["RINGFENCE_HOST", "MCP_SERVER_HOST"]),
    key("server.port", Format::Number, &["RINGFENCE_PORT", "MCP_SERVER_PORT"]),
    key("server.enable_cors", Format::Switch, &["MCP_ENABLE_CORS"]),
    key("server.allow_local_users", Format::Switch, &["RINGFENCE_ALLOW_LOCAL_USERS"]),
    key("server.allowed_hosts", Format::List, &[]),
    key("server.profile", Format::Text, &["RINGFENCE_PROFILE"]),
    key("server.max_concurrent_requests", Format::Number, &[]),
    key("server.max_connections", Format::Number, &[]),
    key("server.request_timeout_s", Format::Number, &[]),
    key("server.drain_timeout_s", Format::Number, &[]),
    key("server.client_timeout_s", Format::Number, &[]),
    key(TOKEN_KEY, Format::Secret, &["RINGFENCE_AUTH_TOKEN", "MCP_AUTH_TOKEN"]),
    key("sessions.default_template", Format::Text, &[]),
    key("sessions.default_flavor", Format::Text, &["MSB_DEFAULT_FLAVOR"]),
    key("sessions.timeout_s", Format::Number, &[]),
    key("sessions.max_timeout_s", Format::Number, &[]),
    key("sessions.max_sessions", Format::Number, &["RINGFENCE_MAX_SESSIONS", "MSB_MAX_SESSIONS"]),
    key("sessions.max_sessions_per_principal", Format::Number, &[]),
    key("sessions.max_total_memory", Format::Text, &[]),
    key("sessions.max_total_memory", Format::Megabytes, &["MSB_MAX_TOTAL_MEMORY_MB"]),
    key("sessions.max_queued_calls", Format::Number, &[]),
    key("sessions.max_result_text", Format::Text, &[]),
    key("sessions.idle_timeout_s", Format::Number, &["MSB_SESSION_TIMEOUT"]),
    key("sessions.max_age_s", Format::Number, &[]),
    key("sessions.evict_idle", Format::Switch, &[]),
    key("sessions.lease_s", Format::Number, &[]),
    key("sessions.allow", Format::List, &[]),
    key("sessions.secrets", Format::List, &[]),
    key("sessions.ask", Format::Switch, &[]),
    key("sessions.volumes", Format::List, &["MSB_SHARED_VOLUME_PATH"]),
    key("sessions.strict_volumes", Format::Switch, &[]),
    key("sessions.accept", Format::List, &[]),
    key("sessions.pool", Format::CountTable, &[]),
    key("sessions.preload", Format::List, &[]),
    key("sessions.rich_html", Format::Switch, &[]),
    key("sessions.state_dir", Format::Text, &["RINGFENCE_STATE_DIR", "MCP_BRIDGE_STATE_DIR"]),
    key("code.timeout_s", Format::Number, &["MCP_BRIDGE_TIMEOUT"]),
    key("code.max_timeout_s", Format::Number, &["MCP_BRIDGE_MAX_TIMEOUT"]),
    key("code.memory", Format::Text, &["MCP_BRIDGE_MEMORY"]),
    key("code.pids", Format::Number, &["MCP_BRIDGE_PIDS"]),
    key("code.cpus", Format::Fraction, &["MCP_BRIDGE_CPUS"]),
    key("code.template", Format::Text, &[]),
    key("code.output_mode", Format::Keyword, &["MCP_BRIDGE_OUTPUT_MODE"]),
    key("code.calls_per_server", Format::Number, &[]),
    key("code.call_timeout_s", Format::Number, &[]),
    key("hosting.files", Format::List, &["MCP_SERVERS_CONFIG"]),
    key("hosting.import", Format::Switch, &[]),
    key("hosting.discover", Format::Switch, &[]),
    key("hosting.install_allow", Format::List, &[]),
    key("hosting.pin_on_first_use", Format::Switch, &[]),
    key("packages.enabled", Format::Switch, &[]),
    key("packages.registries.python", Format::Text, &[]),
    key("packages.registries.npm", Format::Text, &[]),
    key("packages.max_size", Format::Text, &[]),
    key("log.level", Format::Level, &["RINGFENCE_LOG", "MCP_BRIDGE_LOG_LEVEL"]),
    key("log.format", Format::Text, &[]),
];

impl Key {
    /// Returns the variables that set the key, the one with the highest precedence first.
    pub(crate) fn variables(&self) -> impl Iterator<Item = String> {
        let main = format!("{PREFIX}{}", self.name.replace('.', "_").to_uppercase());
        let main = (!matches!(self.format, Format::Secret | Format::Megabytes)).then_some(main);
        main.into_iter().chain(self.aliases.iter().map(ToString::to_string))
    }

    /// Returns the values that a variable with this text sets.
    fn parse(&self, variable: &str, text: &str) -> Result<Vec<(KeyPath, Value)>, String> {
        let path = || key_path(self.name);
        let below = |name: &str| path().into_iter().chain([name.to_owned()]).collect();
        let value = match self.format {
            Format::Text => text.into(),
            Format::Number => parse_number(text)?.into(),
            Format::Fraction => parse_fraction(text)?.into(),
            Format::Keyword => text.trim().to_lowercase().into(),
            Format::Level => normalize_log_level(text).into(),
            Format::Switch => parse_switch(text)?.into(),
            Format::List => parse_list(text)?.into(),
            Format::Megabytes => format!("{}M", parse_number(text)?).into(),
            Format::Secret => return Ok(vec![(below("env"), variable.into())]),
            Format::CountTable => {
                let counts = parse_counts(text)?.into_iter();
                return Ok(counts.map(|(name, count)| (below(&name), count.into())).collect());
            }
        };
        Ok(vec![(path(), value)])
    }
}

/// Returns a warning for each variable that is probably a misspelt one of ringfence.
pub(crate) fn misspelt_variables(environment: &Environment) -> Vec<String> {
    let known: Vec<String> = KEYS.iter().flat_map(Key::variables).chain([CONFIG_FILE_VARIABLE.to_owned()]).collect();
    let is_known = |name: &str| OTHER_VARIABLES.contains(&name) || known.iter().any(|known| known == name);
    let suggestion = |name: &str| {
        let candidates = known.iter().filter_map(|known| known.strip_prefix(PREFIX));
        closest(name.strip_prefix(PREFIX)?, candidates).map(str::to_owned)
    };
    let unknown = environment.names().filter(|name| !is_known(name));
    unknown.filter_map(|name| Some(format!("{name} is ignored: did you mean {PREFIX}{}?", suggestion(name)?))).collect()
}

/// Returns a warning if the key of another server is set, but no variable with a token.
pub(crate) fn foreign_key_warning(environment: &Environment) -> Option<String> {
    let is_set = |name: &str| environment.get(name).is_some_and(|text| !text.trim().is_empty());
    let token = KEYS.iter().find(|key| key.name == TOKEN_KEY)?;
    let is_ignored = is_set(FOREIGN_KEY_VARIABLE) && !token.variables().any(|name| is_set(&name));
    let variable = token.variables().next()?;
    is_ignored.then(|| {
        format!("{FOREIGN_KEY_VARIABLE} is ignored, because it is the key of another server; to require a token, set {variable}")
    })
}

/// Returns the values that environment variables set.
pub(crate) fn values_from_environment(environment: &Environment) -> Result<Values, ConfigError> {
    let mut values = Values::default();
    // In reverse order, because an earlier entry of the same key takes precedence.
    for key in KEYS.iter().rev() {
        let variable = key.variables().find_map(|name| {
            let text = environment.get(&name)?;
            // Variables of other programs are often set to an empty text, which means that they are not set.
            (name.starts_with(PREFIX) || !text.trim().is_empty()).then_some((name, text))
        });
        let Some((name, text)) = variable else { continue };
        let origin = Origin::Variable(name.clone());
        let invalid = |problem| ConfigError::Invalid { origin: origin.clone(), problem, hint: None };
        let mut from_variable = Values::default();
        for (path, value) in key.parse(&name, text).map_err(invalid)? {
            from_variable.set(path, value, origin.clone());
        }
        from_variable.config().map_err(invalid)?;
        values.overlay(from_variable);
    }
    Ok(values)
}

fn parse_number(text: &str) -> Result<i64, String> {
    text.trim().parse().map_err(|_| format!("`{text}` is not a whole number"))
}

fn parse_fraction(text: &str) -> Result<f64, String> {
    text.trim().parse().map_err(|_| format!("`{text}` is not a number"))
}

/// Returns the name of a log level in lower case, also for Python's names of levels.
pub fn normalize_log_level(text: &str) -> String {
    let level = text.trim().to_lowercase();
    match level.as_str() {
        "warning" => "warn".into(),
        "critical" | "fatal" => "error".into(),
        "notset" => "trace".into(),
        _ => level,
    }
}

fn parse_switch(text: &str) -> Result<bool, String> {
    match text.trim().to_ascii_lowercase().as_str() {
        "true" | "1" | "yes" | "on" => Ok(true),
        "false" | "0" | "no" | "off" => Ok(false),
        _ => Err(format!("`{text}` is neither true nor false")),
    }
}

fn parse_list(text: &str) -> Result<Vec<String>, String> {
    if text.trim_start().starts_with('[') {
        return serde_json::from_str(text).map_err(|error| format!("`{text}` is not a JSON list of strings: {error}"));
    }
    Ok(text.split(',').map(str::trim).filter(|name| !name.is_empty()).map(Into::into).collect())
}

fn parse_counts(text: &str) -> Result<Vec<(String, i64)>, String> {
    let parse = |part: &str| {
        let (name, count) = part.split_once('=').ok_or_else(|| format!("`{part}` is not TEMPLATE=NUMBER"))?;
        Ok((name.trim().to_owned(), parse_number(count)?))
    };
    text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(parse).collect()
}
