//! The `box` of an entry.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

use super::checks::{check_path, check_variables};
use super::error::{EntryError, Warning};
use super::fields::Fields;
use crate::{BoxSettings, HostPathMode};
use ringfence_core::suggest::{closest, join};
use ringfence_egress::Rule;

/// Every key of a `box`.
const KEYS: [&str; 12] = [
    "allow",
    "cpus",
    "env",
    "host_path",
    "host_path_mode",
    "image",
    "memory_mb",
    "network",
    "pids_limit",
    "read_only_rootfs",
    "shared",
    "startup_timeout_sec",
];

/// The error for a key that a `box` does not have, with the most similar key as a suggestion.
pub fn check_box_key(key: &str) -> Result<(), String> {
    if KEYS.contains(&key) {
        return Ok(());
    }
    Err(match closest(key, KEYS) {
        Some(similar) => format!("unknown key `{key}`; did you mean `{similar}`?"),
        None => format!("unknown key `{key}`; the keys are {}", join(KEYS)),
    })
}

/// A day: longer than anybody waits for a server.
const MOST_SECONDS: u64 = 86_400;

pub(super) fn read(value: &Value) -> Result<(BoxSettings, Vec<Warning>), EntryError> {
    let Value::Object(map) = value else {
        return Err(EntryError::Kind { key: "box".into(), found: super::error::kind(value), expected: "a table" });
    };
    let mut fields = Fields::new(map, "box.");
    let usual = BoxSettings::default();
    let path = |fields: &mut Fields<'_>, key: &'static str| {
        let given = fields.text(&[key])?;
        given.map(|text| check_path(fields, key, &text).map(|()| PathBuf::from(text))).transpose()
    };
    let image = path(&mut fields, "image")?;
    let host_path = path(&mut fields, "host_path")?;
    let env = fields.table(&["env"])?;
    check_variables(&fields, "env", &env)?;
    let startup = fields.whole("startup_timeout_sec", 1, MOST_SECONDS)?;
    let settings = BoxSettings {
        image,
        network: network(&mut fields)?.unwrap_or(usual.network),
        allow: rules(&mut fields)?,
        host_path,
        host_path_mode: host_path_mode(&mut fields)?.unwrap_or(usual.host_path_mode),
        env,
        startup_timeout: startup.map_or(usual.startup_timeout, Duration::from_secs),
        cpus: fields.number("cpus", 0.01, 1024.0)?,
        memory_mb: fields.whole("memory_mb", 16, 1 << 20)?,
        pids_limit: fields.whole("pids_limit", 2, 1 << 22)?.and_then(|pids| u32::try_from(pids).ok()),
        read_only_rootfs: fields.switch(&["read_only_rootfs"])?.unwrap_or(usual.read_only_rootfs),
        shared: fields.switch(&["shared"])?.unwrap_or(usual.shared),
    };
    Ok((settings, fields.finish()))
}

fn network(fields: &mut Fields<'_>) -> Result<Option<bool>, EntryError> {
    let Some((key, value)) = fields.take(&["network"]) else { return Ok(None) };
    match value {
        Value::Bool(switch) => Ok(Some(*switch)),
        Value::String(text) if text == "on" => Ok(Some(true)),
        Value::String(text) if text == "off" || text == "none" => Ok(Some(false)),
        Value::String(text) => Err(fields.wrong(
            key,
            format!("`{text}` is neither on nor off"),
            "it says whether the installation of dependencies may use the network; what the server itself may reach \
             is listed in `allow`",
        )),
        other => Err(fields.kind_error(key, other, "on or off")),
    }
}

fn host_path_mode(fields: &mut Fields<'_>) -> Result<Option<HostPathMode>, EntryError> {
    match fields.text(&["host_path_mode"])?.as_deref() {
        None => Ok(None),
        Some("ro") => Ok(Some(HostPathMode::ReadOnly)),
        Some("rw") => Ok(Some(HostPathMode::ReadWrite)),
        Some(other) => Err(fields.wrong("host_path_mode", format!("unknown value `{other}`"), "write ro or rw")),
    }
}

/// The rules in the form in which they are always written.
fn rules(fields: &mut Fields<'_>) -> Result<Vec<String>, EntryError> {
    let texts = fields.texts(&["allow"])?.unwrap_or_default();
    let parse = |text: &String| {
        text.parse::<Rule>().map(|rule| rule.to_string()).map_err(|error| {
            let source = std::error::Error::source(&error).map(|source| format!(": {source}"));
            fields.wrong("allow", format!("{error}{}", source.unwrap_or_default()), error.hint())
        })
    };
    texts.iter().map(parse).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn box_keys_are_those_that_are_read() {
        // A known key rejects a value of the wrong type; an unknown key is only a warning.
        for key in KEYS {
            assert!(read(&json!({key: [[1]]})).is_err(), "{key}");
        }
    }

    #[test]
    fn unknown_box_key_has_a_suggestion() {
        assert_eq!(check_box_key("allow"), Ok(()));
        assert_eq!(check_box_key("alow").unwrap_err(), "unknown key `alow`; did you mean `allow`?");
        assert!(check_box_key("colour").unwrap_err().starts_with("unknown key `colour`; the keys are allow, cpus"));
    }
}
