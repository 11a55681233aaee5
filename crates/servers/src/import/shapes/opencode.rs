//! `OpenCode`: `mcp`, with the command as a list and `{env:VAR}` for variables.

use serde_json::Value;

use super::super::placeholder;
use super::{Item, Reason, table};

pub(super) fn items(document: &Value) -> Result<Vec<Item>, Reason> {
    let mut items = table(document, &["mcp"])?;
    for item in &mut items {
        let Ok(entry) = &mut item.entry else { continue };
        // A table that only switches a server of another file on or off.
        if entry.get("command").is_none() && entry.get("url").is_none() && entry.get("enabled").is_some() {
            item.entry = Err(Reason::new("it only switches on or off what is defined elsewhere"));
            continue;
        }
        placeholder::for_each_text(entry, &mut |text| *text = placeholder::replace(text, "{env:", "}", "${", "}"));
        let mut reads_file = false;
        placeholder::for_each_text(entry, &mut |text| reads_file |= text.contains("{file:"));
        if reads_file {
            item.entry = Err(Reason::new("a value is read from a file with `{file:…}`")
                .hint("add it with `ringfence server add`, and give the value in a variable"));
        }
    }
    Ok(items)
}
