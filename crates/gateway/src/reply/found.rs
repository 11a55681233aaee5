//! What a search for tools found.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::{ToolResult, terminal};
use crate::code::Found;
use crate::content::ContentBlock;

/// What is shown of a description.
const MOST_CHARACTERS: usize = 200;

/// Renders tools as code would call them, each in a line.
pub(crate) fn found_tools(found: &[Found]) -> ToolResult {
    let mut text = String::new();
    for one in found {
        let parameters = parameters(&one.tool["inputSchema"]);
        let call = format!("mcp_{}.{}({parameters})", one.server_alias, one.alias);
        let _ = writeln!(text, "{call} — {}", terminal::plain(&first_line(one.description())));
    }
    let servers: std::collections::BTreeSet<&str> = found.iter().map(|one| one.server.as_str()).collect();
    if found.is_empty() {
        text.push_str("no tool was found; try other words");
    } else {
        let named: Vec<Value> = servers.into_iter().map(Into::into).collect();
        let _ = write!(text, "servers: {}", Value::Array(named));
    }
    let tools: Vec<Value> = found
        .iter()
        .map(|one| {
            json!({
                "server": one.server,
                "tool": one.name(),
                "description": first_line(one.description()),
                "inputSchema": one.tool["inputSchema"],
            })
        })
        .collect();
    ToolResult::success(vec![ContentBlock::text(text)], json!({"tools": tools}))
}

/// By name, the optional ones with a question mark.
fn parameters(schema: &Value) -> String {
    let required: Vec<&str> = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let names = schema["properties"].as_object().into_iter().flat_map(|properties| properties.keys());
    let mark = |name: &String| if required.contains(&name.as_str()) { name.clone() } else { format!("{name}?") };
    terminal::plain(&names.map(mark).collect::<Vec<_>>().join(", "))
}

fn first_line(description: &str) -> String {
    let line = description.trim_start().lines().next().unwrap_or_default();
    if line.chars().count() <= MOST_CHARACTERS {
        return line.to_owned();
    }
    line.chars().take(MOST_CHARACTERS).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_are_shown_as_they_are_called() {
        let tool = json!({
            "name": "create-issue",
            "description": "Open an issue.\nWith \u{1b}[31mmore.",
            "inputSchema": {"properties": {"title": {}, "body": {}}, "required": ["title"]},
        });
        let found = Found {
            server: "git hub".into(),
            server_alias: "git_hub".into(),
            tool,
            alias: "create_issue".into(),
            score: 1.0,
        };
        let shown = found_tools(&[found]).into_json();
        let text = "mcp_git_hub.create_issue(title, body?) — Open an issue.\nservers: [\"git hub\"]";
        assert_eq!(shown["content"][0]["text"], text);
        assert_eq!(shown["structuredContent"]["tools"][0]["tool"], "create-issue");
        let none = found_tools(&[]).into_json();
        assert_eq!(none["content"][0]["text"], "no tool was found; try other words");
    }
}
