//! Parses the key `box` of an entry.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

use super::checks::{check_path, check_variables};
use super::error::{EntryError, ExpectedType, Warning, type_name};
use super::fields::Fields;
use crate::{AllowEntry, HostPathMode, SandboxSettings};
use ringfence_core::suggest::{closest, join};
use ringfence_egress::Rule;
use serde::Deserialize as _;

/// All keys of `box`.
const KEYS: [&str; 13] = [
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
    "secrets",
    "shared",
    "startup_timeout_sec",
];

/// Checks that `box` has a key. The error suggests the most similar key.
pub fn check_box_key(key: &str) -> Result<(), String> {
    if KEYS.contains(&key) {
        return Ok(());
    }
    Err(match closest(key, KEYS) {
        Some(similar) => format!("unknown key `{key}`; did you mean `{similar}`?"),
        None => format!("unknown key `{key}`; the keys are {}", join(KEYS)),
    })
}

/// Maximum of `startup_timeout_sec`: one day.
const MAX_STARTUP_TIMEOUT_S: u64 = 86_400;

pub(super) fn parse(value: &Value) -> Result<(SandboxSettings, Vec<Warning>), EntryError> {
    let Value::Object(map) = value else {
        let (key, found) = ("box".into(), type_name(value));
        return Err(EntryError::WrongType { key, found, expected: ExpectedType::Table });
    };
    let mut fields = Fields::new(map, "box.");
    let defaults = SandboxSettings::default();
    let path = |fields: &mut Fields<'_>, key: &'static str| {
        let given = fields.string(&[key])?;
        given.map(|text| check_path(fields, key, &text).map(|()| PathBuf::from(text))).transpose()
    };
    let image = path(&mut fields, "image")?;
    let host_path = path(&mut fields, "host_path")?;
    let env = fields.table(&["env"])?;
    check_variables(&fields, "env", &env)?;
    let startup_timeout = fields.integer("startup_timeout_sec", 1, MAX_STARTUP_TIMEOUT_S)?;
    let settings = SandboxSettings {
        image,
        network: network(&mut fields)?.unwrap_or(defaults.network),
        allow: allow(&mut fields)?,
        secrets: fields.strings(&["secrets"])?.unwrap_or_default(),
        host_path,
        host_path_mode: host_path_mode(&mut fields)?.unwrap_or(defaults.host_path_mode),
        env,
        startup_timeout: startup_timeout.map_or(defaults.startup_timeout, Duration::from_secs),
        cpus: fields.number("cpus", 0.01, 1024.0)?,
        memory_mb: fields.integer("memory_mb", 16, 1 << 20)?,
        pids_limit: fields.integer("pids_limit", 2, 1 << 22)?.and_then(|pids| u32::try_from(pids).ok()),
        read_only_rootfs: fields.boolean(&["read_only_rootfs"])?.unwrap_or(defaults.read_only_rootfs),
        shared: fields.boolean(&["shared"])?.unwrap_or(defaults.shared),
    };
    Ok((settings, fields.finish()))
}

fn network(fields: &mut Fields<'_>) -> Result<Option<bool>, EntryError> {
    let Some((key, value)) = fields.get(&["network"]) else { return Ok(None) };
    match value {
        Value::Bool(is_on) => Ok(Some(*is_on)),
        Value::String(text) if text == "on" => Ok(Some(true)),
        Value::String(text) if text == "off" || text == "none" => Ok(Some(false)),
        Value::String(text) => Err(fields.invalid(
            key,
            format!("has the unknown value `{text}`"),
            "use on or off, for the installation of dependencies; list hosts that the server itself may reach in `allow`",
        )),
        value => Err(fields.wrong_type(key, value, ExpectedType::OnOrOff)),
    }
}

fn host_path_mode(fields: &mut Fields<'_>) -> Result<Option<HostPathMode>, EntryError> {
    match fields.string(&["host_path_mode"])?.as_deref() {
        None => Ok(None),
        Some("ro") => Ok(Some(HostPathMode::ReadOnly)),
        Some("rw") => Ok(Some(HostPathMode::ReadWrite)),
        Some(mode) => Err(fields.invalid("host_path_mode", format!("has the unknown value `{mode}`"), "use ro or rw")),
    }
}

/// Returns the egress rules of the server in their normalized text form, which can express methods and paths too.
fn allow(fields: &mut Fields<'_>) -> Result<Vec<String>, EntryError> {
    let given = fields.get(&["allow"]).and_then(|(_, value)| value.as_array());
    if let Some(items) = given.filter(|items| items.iter().any(Value::is_object)) {
        let parse = |item: &Value| {
            AllowEntry::deserialize(item).map(|entry| entry.0.to_string()).map_err(|error| {
                let hint = "write a host, or a table such as { host = \"example.com\", methods = [\"GET\"] }";
                fields.invalid("allow", format!("contains an invalid rule: {error}"), hint)
            })
        };
        return items.iter().map(parse).collect();
    }
    let rules = fields.strings(&["allow"])?.unwrap_or_default();
    let parse = |text: &String| {
        text.parse::<Rule>().map(|rule| rule.to_string()).map_err(|error| {
            let source = std::error::Error::source(&error).map(|source| format!(": {source}"));
            let problem = format!("contains an invalid rule: {error}{}", source.unwrap_or_default());
            fields.invalid("allow", problem, error.hint())
        })
    };
    rules.iter().map(parse).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn all_box_keys_are_parsed() {
        // A known key rejects a value of the wrong type; an unknown key is only a warning.
        for key in KEYS {
            assert!(parse(&json!({key: [[1]]})).is_err(), "{key}");
        }
    }

    #[test]
    fn rules_with_methods_and_paths_are_tables_or_texts() {
        let table = json!({"allow": ["b.com", {"host": "a.com", "methods": ["get"], "paths": ["/x/*"]}]});
        let (settings, _) = parse(&table).unwrap();
        assert_eq!(settings.allow, ["b.com", "a.com method=GET path=/x/*"]);
        assert_eq!(parse(&json!({"allow": settings.allow})).unwrap().0.allow, settings.allow);
        let error = parse(&json!({"allow": [{"host": "a.com", "path": ["/x"]}]})).unwrap_err();
        assert!(error.to_string().contains("unknown field `path`"), "{error}");
    }

    #[test]
    fn unknown_box_key_has_a_suggestion() {
        assert_eq!(check_box_key("allow"), Ok(()));
        assert_eq!(check_box_key("alow").unwrap_err(), "unknown key `alow`; did you mean `allow`?");
        assert!(check_box_key("colour").unwrap_err().starts_with("unknown key `colour`; the keys are allow, cpus"));
    }
}
