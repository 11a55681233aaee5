//! Reads the settings of `OpenCode`: the table `mcp`, in which `command` is a list and `{env:VAR}` refers to a
//! variable.

use serde_json::Value;

use super::super::placeholders;
use super::{Item, SkipReason, table};

pub(super) fn items(document: &Value) -> Result<Vec<Item>, SkipReason> {
    let mut items = table(document, &["mcp"])?;
    for item in &mut items {
        let Ok(entry) = &mut item.entry else { continue };
        // Another file defines the server; this entry only enables or disables it.
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
