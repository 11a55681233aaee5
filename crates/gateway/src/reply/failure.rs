//! Failures of built-in tools as results, so that models see them.

use ringfence_core::Failure;
use serde_json::Value;

use super::ToolResult;
use super::terminal::to_one_line;
use crate::content::ContentBlock;

/// Maximum number of characters of a message or a hint. Callers choose parts of them.
const MAX_LINE_CHARS: usize = 2000;

/// Renders the failure of a tool: the message and the next steps as text, and the fields of a JSON-RPC error.
pub(crate) fn failure(failure: Failure) -> ToolResult {
    let fields = ringfence_mcp::failure::tool_result_fields(failure);
    let mut text = format!("error: {}", line(&fields["message"]));
    for hint in hints(&fields) {
        text.push_str("\nhint: ");
        text.push_str(&hint);
    }
    ToolResult { content: vec![ContentBlock::text(text)], fields, is_error: true }
}

/// The next steps, and the incident id of an internal error.
pub(super) fn hints(fields: &Value) -> Vec<String> {
    let suggestions = fields["recovery_suggestions"].as_array().into_iter().flatten().map(line);
    let incident = fields["context"].get("incident_id").map(|id| format!("the incident id is {}", line(id)));
    suggestions.chain(incident).collect()
}

fn line(value: &Value) -> String {
    let text: String = value.as_str().unwrap_or_default().chars().take(MAX_LINE_CHARS).collect();
    to_one_line(&text)
}

#[cfg(test)]
mod tests {
    use ringfence_core::Kind;

    use super::*;

    #[test]
    fn message_and_next_step_are_text_and_the_fields_of_an_error_are_structured() {
        let refusal = Failure::new(Kind::Validation, "unknown template `x\n[ok, 1 ms]`")
            .hint("use one of those")
            .hint("or omit it")
            .with("field", "template");
        insta::assert_json_snapshot!(failure(refusal).into_json());
    }

    #[test]
    fn incident_id_is_visible_and_internal_details_are_not() {
        let result = failure(Failure::new(Kind::Internal, "open /srv/secret").with("path", "/srv/secret")).into_json();
        let id = result["structuredContent"]["context"]["incident_id"].as_str().unwrap();
        let text = result["content"][0]["text"].as_str().unwrap();
        assert!(text.starts_with("error: internal error\nhint: ") && text.contains(id), "{text}");
        assert!(!result.to_string().contains("secret"));
    }
}
