//! Zed: `context_servers`, with the command as a text or, in older settings, as a table.

use serde_json::Value;

use super::{Item, Reason, table};

pub(super) fn items(document: &Value) -> Result<Vec<Item>, Reason> {
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
            item.entry = Err(Reason::new("it belongs to an extension of Zed, which alone knows how to start it")
                .hint("look up the server's own command, and add it with `ringfence server add`"));
            continue;
        }
        entry.shift_remove("settings");
    }
    Ok(items)
}
