//! Claude Code: `mcpServers` for all projects, and another `mcpServers` in the table of each project.

use serde_json::Value;

use super::{Item, SkipReason, table};

pub(super) fn items(document: &Value) -> Result<Vec<Item>, SkipReason> {
    let mut items = table(document, &["mcpServers"])?;
    let projects = document.get("projects").and_then(Value::as_object);
    for (path, project) in projects.into_iter().flatten() {
        let disabled: Vec<&str> = project
            .get("disabledMcpServers")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        for mut item in table(project, &["mcpServers"])? {
            item.project = Some(path.into());
            if disabled.contains(&item.name.as_str())
                && let Ok(Value::Object(entry)) = &mut item.entry
            {
                entry.insert("enable".into(), false.into());
            }
            items.push(item);
        }
    }
    Ok(items)
}
