//! Zed: `context_servers`, with the command as a string or, in older settings, as a table.

use serde_json::Value;

use super::{Item, SkipReason, table};

pub(super) fn items(document: &Value) -> Result<Vec<Item>, SkipReason> {
    let mut items = table(document, &["context_servers"])?;
    for item in &mut items {
        let Ok(Value::Object(entry)) = &mut item.entry else { continue };
        if let Some(Value::Object(mut command)) = entry.get("command").cloned() {
            entry.insert("command".into(), command.shift_remove("path").unwrap_or_default());
            for key in ["args", "env"] {
                if let Some(value) = command.shift_remove(key) {
                    entry.insert(key.into(), value);
                }
            }
        }
        let is_defined = entry.get("command").or_else(|| entry.get("url")).is_some_and(|value| !value.is_null());
        if !is_defined {
            item.entry =
                Err(SkipReason::new("the server belongs to an extension of Zed, and its command is not in the file")
                    .hint("add the server with `ringfence server add` and the command from its documentation"));
            continue;
        }
        entry.shift_remove("settings");
    }
    Ok(items)
}
