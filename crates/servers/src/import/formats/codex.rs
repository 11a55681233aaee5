//! Codex: `mcp_servers` in TOML, with separate keys for values that come from variables.

use serde_json::{Map, Value, json};

use super::{Item, SkipReason, table};

/// The key of the table of servers.
pub(super) const KEY: &str = "mcp_servers";

pub(super) fn items(document: &Value) -> Result<Vec<Item>, SkipReason> {
    let mut items = table(document, &[KEY])?;
    for item in &mut items {
        if let Ok(Value::Object(entry)) = &mut item.entry {
            convert(entry);
        }
    }
    Ok(items)
}

fn convert(entry: &mut Map<String, Value>) {
    let variable = |name: &str| Value::from(format!("${{{name}}}"));
    let mut headers = take_table(entry, "http_headers");
    if let Some(Value::String(name)) = entry.shift_remove("bearer_token_env_var") {
        headers.insert("Authorization".into(), format!("Bearer ${{{name}}}").into());
    }
    for (header, name) in take_table(entry, "env_http_headers") {
        headers.insert(header, name.as_str().map_or(Value::Null, variable));
    }
    if !headers.is_empty() {
        entry.insert("headers".into(), headers.into());
    }
    let mut env = take_table(entry, "env");
    if let Some(Value::Array(names)) = entry.shift_remove("env_vars") {
        let name_of = |item: &Value| item.as_str().or_else(|| item.get("name")?.as_str()).map(ToOwned::to_owned);
        for name in names.iter().filter_map(name_of) {
            env.entry(name.clone()).or_insert_with(|| variable(&name));
        }
    }
    if !env.is_empty() {
        entry.insert("env".into(), env.into());
    }
    if let Some(seconds) = entry.shift_remove("startup_timeout_sec").and_then(|value| value.as_f64())
        && entry.contains_key("command")
    {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let whole = seconds.ceil().clamp(1.0, 86_400.0) as u64;
        match entry.get_mut("box") {
            Some(Value::Object(settings)) => drop(settings.insert("startup_timeout_sec".into(), whole.into())),
            _ => drop(entry.insert("box".into(), json!({"startup_timeout_sec": whole}))),
        }
    }
    // The timeout of a call is set by the MCP client that calls ringfence.
    entry.shift_remove("tool_timeout_sec");
}

fn take_table(entry: &mut Map<String, Value>, key: &str) -> Map<String, Value> {
    match entry.shift_remove(key) {
        Some(Value::Object(map)) => map,
        _ => Map::new(),
    }
}
