//! The result of `search_tools`.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde_json::{Value, json};

use super::{ToolResult, terminal};
use crate::code::FoundTool;
use crate::content::ContentBlock;

const MAX_DESCRIPTION_CHARS: usize = 200;

/// Renders tools in the syntax in which code calls them, one in each line.
pub(crate) fn found_tools(found: &[FoundTool]) -> ToolResult {
    let mut text = String::new();
    for tool in found {
        let parameters = parameters(&tool.definition["inputSchema"]);
        let call = format!("mcp_{}.{}({parameters})", tool.server_alias, tool.alias);
        let _ = writeln!(text, "{call} — {}", terminal::to_plain_text(&first_line(tool.description())));
    }
    let servers: BTreeSet<&str> = found.iter().map(|tool| tool.server.as_str()).collect();
    if found.is_empty() {
        text.push_str("no tools found; try other words");
    } else {
        let _ = write!(text, "servers: {}", json!(servers));
    }
    let tools: Vec<Value> = found
        .iter()
        .map(|tool| {
            json!({
                "server": tool.server,
                "tool": tool.name(),
                "description": first_line(tool.description()),
                "inputSchema": tool.definition["inputSchema"],
            })
        })
        .collect();
    ToolResult::success(vec![ContentBlock::text(text)], json!({"tools": tools}))
}

/// Lists parameter names, with a question mark after optional ones.
fn parameters(schema: &Value) -> String {
    let required: Vec<&str> = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let names = schema["properties"].as_object().into_iter().flat_map(|properties| properties.keys());
    let mark = |name: &String| if required.contains(&name.as_str()) { name.clone() } else { format!("{name}?") };
    terminal::to_plain_text(&names.map(mark).collect::<Vec<_>>().join(", "))
}

fn first_line(description: &str) -> String {
    let line = description.trim_start().lines().next().unwrap_or_default();
    if line.chars().count() <= MAX_DESCRIPTION_CHARS {
        return line.to_owned();
    }
    line.chars().take(MAX_DESCRIPTION_CHARS).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn found_tools_are_shown_as_calls() {
        let definition = json!({
            "name": "create-issue",
            "description": "Open an issue.\nWith \u{1b}[31mmore.",
            "inputSchema": {"properties": {"title": {}, "body": {}}, "required": ["title"]},
        });
        let found = FoundTool {
            server: "git hub".into(),
            server_alias: "git_hub".into(),
            definition,
            alias: "create_issue".into(),
            score: 1.0,
        };
        let json = found_tools(&[found]).into_json();
        let text = "mcp_git_hub.create_issue(title, body?) — Open an issue.\nservers: [\"git hub\"]";
        assert_eq!(json["content"][0]["text"], text);
        assert_eq!(json["structuredContent"]["tools"][0]["tool"], "create-issue");
        let none = found_tools(&[]).into_json();
        assert_eq!(none["content"][0]["text"], "no tools found; try other words");
    }
}
