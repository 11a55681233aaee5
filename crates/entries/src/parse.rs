//! Parses an entry from JSON: the `mcpServers` format of MCP clients, with the additional key `box`.
//!
//! All spellings that clients use for a key are accepted. An unknown key is ignored with a warning, because clients add
//! keys for themselves; an invalid value is an error. Variables are not expanded, and no file is read.

mod checks;
mod error;
mod fields;
mod sandbox_settings;

use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

pub(crate) use checks::check_url;
pub use error::{EntryError, Warning};
pub use sandbox_settings::check_box_key;

use crate::name::check_name;
use crate::uuid::derived_uuid;
use crate::{RemoteSettings, SandboxSettings, ServerEntry, StartPolicy, StdioSettings, Transport};
use checks::{check_headers, check_path, check_variables, has_reference};
use fields::Fields;

/// Keys of local programs, ignored for remote servers.
const STDIO_KEYS: [&str; 8] = ["command", "args", "env", "environment", "envs", "cwd", "sandbox", "box"];
/// Keys of remote servers, ignored for local programs.
const REMOTE_KEYS: [&str; 7] =
    ["url", "serverUrl", "httpUrl", "headers", "http_headers", "timeout", "sse_read_timeout"];

/// The spellings of the URL of a remote server.
const URL_KEYS: [&str; 3] = ["url", "serverUrl", "httpUrl"];

const HTTP_SCHEMES: [&str; 2] = ["http", "https"];
const WEBSOCKET_SCHEMES: [&str; 2] = ["ws", "wss"];
const ANY_SCHEME: [&str; 4] = ["http", "https", "ws", "wss"];

/// Maximum of `timeout` and `sse_read_timeout` in seconds: one day.
const MAX_TIMEOUT_S: f64 = 86_400.0;

/// The mode that an entry names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Stdio,
    Http,
    Sse,
    Websocket,
    Remote,
}

/// Parses one entry. Its uuid is derived from the name; the store replaces it with a random one.
pub fn entry_from_json(name: &str, value: &Value) -> Result<(ServerEntry, Vec<Warning>), EntryError> {
    check_name(name).map_err(|reason| EntryError::Name { name: name.into(), reason })?;
    let Value::Object(map) = value else {
        return Err(EntryError::NotAnObject { found: error::type_name(value) });
    };
    let mut fields = Fields::new(map, "");
    // Known keys whose values come from the caller and from the store.
    fields.get(&["name"]);
    fields.get(&["uuid"]);
    let enable = enable(&mut fields)?;
    let description = fields.string(&["description"])?;
    let mode = mode(&mut fields)?;
    let mut warnings = Vec::new();
    let has_value = |key: &&str| map.get(*key).is_some_and(|value| !value.is_null());
    let (has_command, has_url) = (has_value(&"command"), URL_KEYS.iter().any(has_value));
    let transport = match (mode, has_command, has_url) {
        (None, false, false) => return Err(EntryError::NoCommandOrUrl),
        (None, true, true) => return Err(EntryError::CommandAndUrl),
        (Some(Mode::Stdio), false, _) => return Err(EntryError::MissingKey { mode: "stdio", key: "command" }),
        (Some(Mode::Stdio), true, _) | (None, true, false) => {
            Transport::Stdio(Box::new(stdio(&mut fields, &mut warnings)?))
        }
        (mode, _, _) => remote(&mut fields, mode)?,
    };
    let ignored: &[&str] = if matches!(transport, Transport::Stdio(_)) { &REMOTE_KEYS } else { &STDIO_KEYS };
    fields.ignore_in_mode(ignored, transport.mode());
    warnings.extend(fields.finish());
    let entry = ServerEntry {
        name: name.into(),
        uuid: derived_uuid(name),
        enable,
        description,
        transport,
        start: StartPolicy::default(),
    };
    Ok((entry, warnings))
}

/// A server is disabled if any of the spellings says so.
fn enable(fields: &mut Fields<'_>) -> Result<bool, EntryError> {
    let enable = fields.boolean(&["enable"])?;
    let enabled = fields.boolean(&["enabled"])?;
    let disabled = fields.boolean(&["disabled"])?;
    let given = [enable, enabled, disabled.map(|disabled| !disabled)];
    if given.contains(&Some(true)) && given.contains(&Some(false)) {
        fields.warn("`enable` and `disabled` contradict each other; the server is disabled; remove one of them".into());
    }
    Ok(!given.contains(&Some(false)))
}

fn mode(fields: &mut Fields<'_>) -> Result<Option<Mode>, EntryError> {
    let Some(text) = fields.string(&["mode", "type", "transport", "transportType"])? else { return Ok(None) };
    // `streamable-http`, `streamable_http` and `streamableHttp` are the same.
    let letters: String = text.chars().filter(char::is_ascii_alphanumeric).collect();
    match letters.to_ascii_lowercase().as_str() {
        "stdio" | "local" => Ok(Some(Mode::Stdio)),
        "http" | "streamablehttp" => Ok(Some(Mode::Http)),
        "sse" => Ok(Some(Mode::Sse)),
        "websocket" | "ws" => Ok(Some(Mode::Websocket)),
        "remote" => Ok(Some(Mode::Remote)),
        _ => Err(EntryError::UnknownMode { mode: text.escape_debug().to_string() }),
    }
}

fn stdio(fields: &mut Fields<'_>, warnings: &mut Vec<Warning>) -> Result<StdioSettings, EntryError> {
    let (command, mut args) = command(fields)?;
    args.extend(fields.strings(&["args"])?.unwrap_or_default());
    if args.is_empty() && command.contains(' ') && !command.contains(['/', '$']) {
        fields.warn(format!("`command` is used as one program name with spaces: `{command}`; put arguments in `args`"));
    }
    let env = fields.table(&["env", "environment", "envs"])?;
    check_variables(fields, "env", &env)?;
    let cwd = fields.string(&["cwd"])?;
    if let Some(cwd) = &cwd {
        check_path(fields, "cwd", cwd)?;
    }
    let sandbox = fields.boolean(&["sandbox"])?.unwrap_or(true);
    let sandbox_settings = match fields.get(&["box"]) {
        None => SandboxSettings::default(),
        Some((_, value)) => {
            let (settings, box_warnings) = sandbox_settings::parse(value)?;
            warnings.extend(box_warnings);
            settings
        }
    };
    Ok(StdioSettings { command, args, env, cwd: cwd.map(PathBuf::from), sandbox, sandbox_settings })
}

/// Returns the program and its first arguments: some clients write `command` as an array.
fn command(fields: &mut Fields<'_>) -> Result<(String, Vec<String>), EntryError> {
    let is_array = matches!(fields.get(&["command"]), Some((_, Value::Array(_))));
    let mut argv = if is_array {
        fields.strings(&["command"])?.unwrap_or_default()
    } else {
        fields.string(&["command"])?.into_iter().collect()
    };
    if argv.first().is_none_or(|program| program.trim().is_empty()) {
        return Err(fields.invalid("command", "is empty", "name the program to start, such as npx"));
    }
    let program = argv.remove(0);
    Ok((program, argv))
}

fn remote(fields: &mut Fields<'_>, mode: Option<Mode>) -> Result<Transport, EntryError> {
    let (schemes, mode_name): (&[&str], _) = match mode {
        Some(Mode::Websocket) => (&WEBSOCKET_SCHEMES, "websocket"),
        Some(Mode::Http) => (&HTTP_SCHEMES, "http"),
        Some(Mode::Sse) => (&HTTP_SCHEMES, "sse"),
        Some(Mode::Remote) => (&HTTP_SCHEMES, "remote"),
        Some(Mode::Stdio) | None => (&ANY_SCHEME, "remote"),
    };
    let Some(url) = fields.string(&URL_KEYS)? else {
        return Err(EntryError::MissingKey { mode: mode_name, key: "url" });
    };
    if !has_reference(&url) {
        let secure_scheme = schemes[1];
        let hint = format!("write the URL as {secure_scheme}://HOST[:PORT]/PATH");
        check_url(&url, schemes).map_err(|problem| fields.invalid("url", problem, hint))?;
    }
    let headers = fields.table(&["headers", "http_headers"])?;
    check_headers(fields, &headers)?;
    let defaults = RemoteSettings::new("");
    let timeout = fields.number("timeout", 0.001, MAX_TIMEOUT_S)?;
    let sse_read_timeout = fields.number("sse_read_timeout", 0.001, MAX_TIMEOUT_S)?;
    let settings = RemoteSettings {
        url,
        headers,
        timeout: timeout.map_or(defaults.timeout, Duration::from_secs_f64),
        sse_read_timeout: sse_read_timeout.map_or(defaults.sse_read_timeout, Duration::from_secs_f64),
    };
    let scheme = settings.url.split(':').next().unwrap_or_default().to_ascii_lowercase();
    let is_websocket = WEBSOCKET_SCHEMES.contains(&scheme.as_str());
    Ok(match mode {
        Some(Mode::Http) => Transport::Http(settings),
        Some(Mode::Sse) => Transport::Sse(settings),
        Some(Mode::Websocket) => Transport::Websocket(settings),
        None if is_websocket => Transport::Websocket(settings),
        Some(Mode::Remote | Mode::Stdio) | None => Transport::Remote(settings),
    })
}

#[cfg(test)]
mod tests;
