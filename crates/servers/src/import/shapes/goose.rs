//! Goose: `extensions` in YAML, with names of its own for most keys.

use serde_json::{Map, Value};

use super::{Item, Reason};

pub(super) fn items(document: &Value) -> Result<Vec<Item>, Reason> {
    let Some(extensions) = document.get("extensions").filter(|value| !value.is_null()) else { return Ok(Vec::new()) };
    let extensions = extensions.as_object().ok_or_else(|| Reason::new("its `extensions` is not a table"))?;
    Ok(extensions.iter().map(|(name, extension)| item(name, extension)).collect())
}

fn item(name: &str, extension: &Value) -> Item {
    let Some(outer) = extension.as_object() else {
        return Item::skipped(name, Reason::new("it is not a table"));
    };
    // Some versions put all but the switch in a table of its own.
    let mut from = match outer.get("config").and_then(Value::as_object) {
        Some(inner) => inner.clone(),
        None => outer.clone(),
    };
    if let Some(enabled) = outer.get("enabled") {
        from.insert("enabled".into(), enabled.clone());
    }
    let kind = from.get("type").and_then(Value::as_str).unwrap_or("stdio").to_owned();
    if !matches!(kind.as_str(), "stdio" | "sse" | "streamable_http") {
        return Item::skipped(
            name,
            Reason::new(format!("it is of the type `{kind}`, which is a part of Goose itself")),
        );
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
    for (theirs, ours) in renamed {
        if let Some(value) = from.shift_remove(theirs).filter(|value| !is_empty(value)) {
            entry.insert(ours.into(), value);
        }
    }
    let mut notes = Vec::new();
    let keys = from.shift_remove("env_keys");
    let keys: Vec<&str> = keys.iter().filter_map(Value::as_array).flatten().filter_map(Value::as_str).collect();
    if !keys.is_empty() {
        notes.push(format!(
            "{} is in Goose's own keeping: set it where ringfence is started",
            ringfence_core::suggest::join(keys.clone())
        ));
        if let Value::Object(env) = entry.entry("env").or_insert_with(|| Value::Object(Map::new())) {
            for key in keys {
                env.entry(key).or_insert_with(|| format!("${{{key}}}").into());
            }
        }
    }
    // What is left is how Goose shows it and how long it waits for it.
    for own in ["name", "display_name", "bundled", "timeout", "config", "available_tools"] {
        let value = from.shift_remove(own);
        if own == "available_tools" && value.as_ref().and_then(Value::as_array).is_some_and(|tools| !tools.is_empty()) {
            notes.push("only some of its tools were used: all are offered now".into());
        }
    }
    entry.extend(from);
    Item { notes, ..Item::new(name, entry.into()) }
}

fn is_empty(value: &Value) -> bool {
    value.is_null() || value.as_object().is_some_and(Map::is_empty) || value.as_str() == Some("")
}
