//! Goose: `extensions` in YAML, with different names for most keys.

use serde_json::{Map, Value};

use super::{Item, SkipReason};

pub(super) fn items(document: &Value) -> Result<Vec<Item>, SkipReason> {
    let Some(extensions) = document.get("extensions").filter(|value| !value.is_null()) else { return Ok(Vec::new()) };
    let extensions = extensions.as_object().ok_or_else(|| SkipReason::new("`extensions` is not a table"))?;
    Ok(extensions.iter().map(|(name, extension)| item(name, extension)).collect())
}

fn item(name: &str, extension: &Value) -> Item {
    let Some(outer) = extension.as_object() else {
        return Item::skipped(name, SkipReason::new("the entry is not a table"));
    };
    // Some versions put all keys except for `enabled` into a table `config`.
    let mut from = match outer.get("config").and_then(Value::as_object) {
        Some(inner) => inner.clone(),
        None => outer.clone(),
    };
    if let Some(enabled) = outer.get("enabled") {
        from.insert("enabled".into(), enabled.clone());
    }
    let kind = from.get("type").and_then(Value::as_str).unwrap_or("stdio").to_owned();
    if !matches!(kind.as_str(), "stdio" | "sse" | "streamable_http") {
        return Item::skipped(name, SkipReason::new(format!("the type `{kind}` is a part of Goose itself")));
    }
    let mut entry = Map::new();
    let renamed = [
        ("type", "type"),
        ("cmd", "command"),
        ("args", "args"),
        ("envs", "env"),
        ("cwd", "cwd"),
        ("uri", "url"),
        ("headers", "headers"),
        ("description", "description"),
        ("enabled", "enabled"),
    ];
    for (goose_key, entry_key) in renamed {
        if let Some(value) = from.shift_remove(goose_key).filter(|value| !is_empty(value)) {
            entry.insert(entry_key.into(), value);
        }
    }
    let mut notes = Vec::new();
    let keys = from.shift_remove("env_keys");
    let keys: Vec<&str> = keys.iter().filter_map(Value::as_array).flatten().filter_map(Value::as_str).collect();
    if !keys.is_empty() {
        notes.push(format!(
            "Goose stores the value of {}: set it in the environment of ringfence",
            ringfence_core::suggest::join(keys.clone())
        ));
        if let Value::Object(env) = entry.entry("env").or_insert_with(|| Value::Object(Map::new())) {
            for key in keys {
                env.entry(key).or_insert_with(|| format!("${{{key}}}").into());
            }
        }
    }
    // The other keys are the timeout, and how Goose displays the server.
    for client_key in ["name", "display_name", "bundled", "timeout", "config", "available_tools"] {
        let value = from.shift_remove(client_key);
        if client_key == "available_tools"
            && value.as_ref().and_then(Value::as_array).is_some_and(|tools| !tools.is_empty())
        {
            notes.push("`available_tools` is not imported: all tools of the server are offered".into());
        }
    }
    entry.extend(from);
    Item { notes, ..Item::new(name, entry.into()) }
}

fn is_empty(value: &Value) -> bool {
    value.is_null() || value.as_object().is_some_and(Map::is_empty) || value.as_str() == Some("")
}
