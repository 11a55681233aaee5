//! `OpenCode`: `mcp`, with the command as a list and `{env:VAR}` for variables.

use serde_json::Value;

use super::super::placeholders;
use super::{Item, SkipReason, table};

pub(super) fn items(document: &Value) -> Result<Vec<Item>, SkipReason> {
    let mut items = table(document, &["mcp"])?;
    for item in &mut items {
        let Ok(entry) = &mut item.entry else { continue };
        // The table only enables or disables a server of another file.
        if entry.get("command").is_none() && entry.get("url").is_none() && entry.get("enabled").is_some() {
            item.entry = Err(SkipReason::new("the entry only enables or disables a server that another file defines"));
            continue;
        }
        placeholders::for_each_text(entry, &mut |text| {
            *text = placeholders::replace_delimiters(text, "{env:", "}", "${", "}");
        });
        let mut reads_file = false;
        placeholders::for_each_text(entry, &mut |text| reads_file |= text.contains("{file:"));
        if reads_file {
            item.entry = Err(SkipReason::new("a value is read from a file with `{file:…}`")
                .hint("add the server with `ringfence server add`, with a variable for the value"));
        }
    }
    Ok(items)
}
