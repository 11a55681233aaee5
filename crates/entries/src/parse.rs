//! Entries from JSON: the `mcpServers` shape of clients, with `box` as one more key.
//!
//! Spellings that clients use for the same thing are all understood. A key that nobody knows is ignored with a warning,
//! since clients add keys of their own; a value that makes no sense is an error. Nothing is expanded and no file is
//! looked at.

mod checks;
mod error;
mod fields;
mod walls;

use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

pub use checks::check_url;
pub use error::{EntryError, Warning};
pub use walls::check_box_key;

use super::name::check_name;
use super::{BoxSettings, Reach, RemoteSettings, ServerEntry, StdioSettings};
use crate::uuid::derived_uuid;
use checks::{check_headers, check_path, check_variables, is_open};
use fields::Fields;

/// Keys of programs that are started, and of servers elsewhere.
const OF_PROGRAMS: [&str; 8] = ["command", "args", "env", "environment", "envs", "cwd", "sandbox", "box"];
const OF_URLS: [&str; 7] = ["url", "serverUrl", "httpUrl", "headers", "http_headers", "timeout", "sse_read_timeout"];

const WEB: [&str; 2] = ["http", "https"];
const SOCKET: [&str; 2] = ["ws", "wss"];

/// A day.
const MOST_SECONDS: f64 = 86_400.0;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Stdio,
    Http,
    Sse,
    Websocket,
    Remote,
}

/// Reads one entry. Its uuid is the one that belongs to the name; whoever stores it gives it another.
pub fn entry_from_json(name: &str, value: &Value) -> Result<(ServerEntry, Vec<Warning>), EntryError> {
    check_name(name).map_err(|why| EntryError::Name { name: name.into(), why })?;
    let Value::Object(map) = value else {
        return Err(EntryError::NotATable { found: error::kind(value) });
    };
    let mut fields = Fields::new(map, "");
    // Given by whoever asks and by whoever stores it.
    fields.take(&["name"]);
    fields.take(&["uuid"]);
    let enable = enable(&mut fields)?;
    let description = fields.text(&["description"])?;
    let mode = mode(&mut fields)?;
    let mut warnings = Vec::new();
    let has_command = map.get("command").is_some_and(|command| !command.is_null());
    let has_url = ["url", "serverUrl", "httpUrl"].iter().any(|key| map.get(*key).is_some_and(|url| !url.is_null()));
    let reach = match (mode, has_command, has_url) {
        (None, false, false) => return Err(EntryError::Nothing),
        (None, true, true) => return Err(EntryError::Both),
        (Some(Mode::Stdio), false, _) => return Err(EntryError::Lacks { mode: "stdio", key: "command" }),
        (Some(Mode::Stdio), true, _) | (None, true, false) => Reach::Stdio(stdio(&mut fields, &mut warnings)?),
        (mode, _, _) => remote(&mut fields, mode)?,
    };
    fields.leave(if matches!(reach, Reach::Stdio(_)) { &OF_URLS } else { &OF_PROGRAMS }, reach.mode());
    warnings.extend(fields.finish());
    let entry = ServerEntry { name: name.into(), uuid: derived_uuid(name), enable, description, reach };
    Ok((entry, warnings))
}

/// Off as soon as one of the spellings says so.
fn enable(fields: &mut Fields<'_>) -> Result<bool, EntryError> {
    let on = [fields.switch(&["enable"])?, fields.switch(&["enabled"])?, fields.switch(&["disabled"])?.map(|off| !off)];
    if on.contains(&Some(true)) && on.contains(&Some(false)) {
        fields.warn("enable and disabled contradict each other: it is disabled".into());
    }
    Ok(!on.contains(&Some(false)))
}

fn mode(fields: &mut Fields<'_>) -> Result<Option<Mode>, EntryError> {
    let Some(text) = fields.text(&["mode", "type", "transport", "transportType"])? else { return Ok(None) };
    let plain: String = text.chars().filter(char::is_ascii_alphanumeric).collect();
    match plain.to_ascii_lowercase().as_str() {
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
    args.extend(fields.texts(&["args"])?.unwrap_or_default());
    if args.is_empty() && command.contains(' ') && !command.contains(['/', '$']) {
        fields.warn(format!("the command `{command}` is one name with spaces; its arguments belong in `args`"));
    }
    let env = fields.table(&["env", "environment", "envs"])?;
    check_variables(fields, "env", &env)?;
    let cwd = fields.text(&["cwd"])?;
    if let Some(cwd) = &cwd {
        check_path(fields, "cwd", cwd)?;
    }
    let sandbox = fields.switch(&["sandbox"])?.unwrap_or(true);
    let sandbox_settings = match fields.take(&["box"]) {
        None => BoxSettings::default(),
        Some((_, value)) => {
            let (settings, more) = walls::read(value)?;
            warnings.extend(more);
            settings
        }
    };
    Ok(StdioSettings { command, args, env, cwd: cwd.map(PathBuf::from), sandbox, sandbox_settings })
}

/// A program, or a list of it and its first arguments.
fn command(fields: &mut Fields<'_>) -> Result<(String, Vec<String>), EntryError> {
    let is_list = matches!(fields.take(&["command"]), Some((_, Value::Array(_))));
    let mut words = if is_list {
        fields.texts(&["command"])?.unwrap_or_default()
    } else {
        fields.text(&["command"])?.into_iter().collect()
    };
    if words.first().is_none_or(|program| program.trim().is_empty()) {
        return Err(fields.wrong("command", "it is empty", "name the program that is to be started"));
    }
    let program = words.remove(0);
    Ok((program, words))
}

fn remote(fields: &mut Fields<'_>, mode: Option<Mode>) -> Result<Reach, EntryError> {
    let (schemes, said): (&[&str], _) = match mode {
        Some(Mode::Websocket) => (&SOCKET, "websocket"),
        Some(Mode::Http) => (&WEB, "http"),
        Some(Mode::Sse) => (&WEB, "sse"),
        Some(Mode::Remote) => (&WEB, "remote"),
        Some(Mode::Stdio) | None => (&["http", "https", "ws", "wss"], "remote"),
    };
    let Some(url) = fields.text(&["url", "serverUrl", "httpUrl"])? else {
        return Err(EntryError::Lacks { mode: said, key: "url" });
    };
    if !is_open(&url) {
        let hint = format!("write it as {}://HOST[:PORT]/PATH", schemes[schemes.len().min(2) - 1]);
        // Told without the URL itself: it may hold a secret.
        check_url(&url, schemes).map_err(|problem| fields.wrong("url", problem, hint))?;
    }
    let headers = fields.table(&["headers", "http_headers"])?;
    check_headers(fields, &headers)?;
    let usual = RemoteSettings::new("");
    let settings = RemoteSettings {
        headers,
        timeout: fields.number("timeout", 0.001, MOST_SECONDS)?.map_or(usual.timeout, Duration::from_secs_f64),
        sse_read_timeout: fields
            .number("sse_read_timeout", 0.001, MOST_SECONDS)?
            .map_or(usual.sse_read_timeout, Duration::from_secs_f64),
        url,
    };
    let is_socket = SOCKET.iter().any(|scheme| settings.url.to_ascii_lowercase().starts_with(&format!("{scheme}:")));
    Ok(match mode {
        Some(Mode::Http) => Reach::Http(settings),
        Some(Mode::Sse) => Reach::Sse(settings),
        Some(Mode::Websocket) => Reach::Websocket(settings),
        None if is_socket => Reach::Websocket(settings),
        Some(Mode::Remote | Mode::Stdio) | None => Reach::Remote(settings),
    })
}

#[cfg(test)]
mod tests;
