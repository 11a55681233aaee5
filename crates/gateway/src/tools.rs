//! The tools that are offered. Kept short: every agent pays for this list in each conversation.

use std::sync::Arc;

use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use serde_json::{Value, json};

pub(crate) const EXECUTE_CODE: &str = "execute_code";
pub(crate) const EXECUTE_COMMAND: &str = "execute_command";
pub(crate) const GET_SESSIONS: &str = "get_sessions";
pub(crate) const STOP_SESSION: &str = "stop_session";
pub(crate) const GET_VOLUME_PATH: &str = "get_volume_path";
pub(crate) const READ_FILE: &str = "read_file";
pub(crate) const WRITE_FILE: &str = "write_file";
pub(crate) const LIST_FILES: &str = "list_files";

/// How the content of a file travels.
pub(crate) const ENCODINGS: [&str; 2] = ["utf-8", "base64"];

/// All tools, in the order in which they are listed.
pub(crate) fn all() -> Vec<Tool> {
    // Code may write to shared volumes and, where a policy allows, reach the network: the hints of
    // the two that run something promise nothing that a configuration could take back.
    let runs = ToolAnnotations::new().read_only(false).destructive(true).idempotent(false).open_world(true);
    let reads = ToolAnnotations::new().read_only(true).open_world(false);
    let stops = ToolAnnotations::new().read_only(false).destructive(true).idempotent(true).open_world(false);
    let writes = stops.clone();
    vec![
        tool(
            EXECUTE_CODE,
            "Run code in a sandbox; variables and files stay for the next call with its session_id.",
            run_input("code"),
            run_output(),
            &runs,
        ),
        tool(
            EXECUTE_COMMAND,
            "Run a shell line in a sandbox, with pipes and redirections.",
            run_input("command"),
            run_output(),
            &runs,
        ),
        tool(
            GET_SESSIONS,
            "List your live sessions, or one.",
            input(json!({"session_id": {"type": "string"}}), &[]),
            output(json!({"sessions": {"type": "array", "items": {"type": "object"}}}), &["sessions"]),
            &reads,
        ),
        tool(
            STOP_SESSION,
            "End a session and free all it holds.",
            input(json!({"session_id": {"type": "string"}}), &["session_id"]),
            output(
                json!({"session_id": {"type": "string"}, "was_running": {"type": "boolean"}}),
                &["session_id", "was_running"],
            ),
            &stops,
        ),
        tool(
            GET_VOLUME_PATH,
            "List host directories shared with sandboxes.",
            input(json!({}), &[]),
            output(json!({"volumes": {"type": "array", "items": {"type": "object"}}}), &["volumes"]),
            &reads,
        ),
        tool(
            READ_FILE,
            "Read a file of a session.",
            file_input(
                json!({
                    "offset": {"type": "integer", "minimum": 0, "description": "bytes"},
                    "length": {"type": "integer", "minimum": 1, "description": "bytes"},
                }),
                &["session_id", "path"],
            ),
            output(
                json!({
                    "path": {"type": "string"},
                    "size": {"type": "integer"},
                    "offset": {"type": "integer"},
                    "encoding": {"enum": ENCODINGS},
                    "content": {"type": "string"},
                }),
                &["path", "size", "encoding", "content"],
            ),
            &reads,
        ),
        tool(
            WRITE_FILE,
            "Write a file of a session; missing directories are made.",
            file_input(
                json!({
                    "content": {"type": "string"},
                    "encoding": {"enum": ENCODINGS, "description": "of content; utf-8 by default"},
                }),
                &["session_id", "path", "content"],
            ),
            output(json!({"path": {"type": "string"}, "size": {"type": "integer"}}), &["path", "size"]),
            &writes,
        ),
        tool(
            LIST_FILES,
            "List a directory of a session.",
            file_input(json!({}), &["session_id"]),
            output(
                json!({
                    "path": {"type": "string"},
                    "entries": {"type": "array", "items": {"type": "object"}},
                    "truncated": {"type": "boolean"},
                }),
                &["path", "entries", "truncated"],
            ),
            &reads,
        ),
    ]
}

fn tool(
    name: &'static str,
    description: &'static str,
    input: JsonObject,
    output: JsonObject,
    hints: &ToolAnnotations,
) -> Tool {
    Tool::new(name, description, input).with_raw_output_schema(Arc::new(output)).with_annotations(hints.clone())
}

fn run_input(what: &str) -> JsonObject {
    let properties = json!({
        what: {"type": "string", "minLength": 1},
        "template": {"type": "string", "description": "python (default), node or bash"},
        "flavor": {"type": "string", "description": "small (default), medium or large"},
        "session_id": {"type": "string", "description": "omit for a new session"},
        "timeout": {"type": "number", "exclusiveMinimum": 0, "description": "seconds"},
    });
    input(properties, &[what])
}

fn file_input(mut properties: Value, required: &[&str]) -> JsonObject {
    properties["session_id"] = json!({"type": "string"});
    properties["path"] = json!({"type": "string", "description": "in /workspace"});
    input(properties, required)
}

fn run_output() -> JsonObject {
    let properties = json!({
        "session_id": {"type": "string"},
        "session_created": {"type": "boolean"},
        "status": {"enum": ["ok", "error", "timed_out", "cancelled", "killed"]},
        "exit_code": {"type": ["integer", "null"]},
        "stdout": {"type": "string"},
        "stderr": {"type": "string"},
        "result": {"type": ["string", "null"]},
        "duration_ms": {"type": "integer"},
        "truncated": {"type": "boolean"},
        "error": {"type": "object"},
        "stdout_resource": {"type": "string"},
        "stderr_resource": {"type": "string"},
    });
    output(
        properties,
        &[
            "session_id",
            "session_created",
            "status",
            "exit_code",
            "stdout",
            "stderr",
            "result",
            "duration_ms",
            "truncated",
        ],
    )
}

fn input(properties: Value, required: &[&str]) -> JsonObject {
    let mut schema = output(properties, required);
    schema.insert("additionalProperties".into(), false.into());
    schema
}

fn output(properties: Value, required: &[&str]) -> JsonObject {
    let mut schema = JsonObject::new();
    schema.insert("type".into(), "object".into());
    schema.insert("properties".into(), properties);
    if !required.is_empty() {
        schema.insert("required".into(), required.into());
    }
    schema
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::Call;

    #[test]
    fn the_list() {
        insta::assert_json_snapshot!(all());
    }

    #[test]
    fn the_list_is_cheap() {
        let bytes = serde_json::to_string(&all()).unwrap().len();
        assert!(bytes < 6144, "{bytes} bytes");
    }

    #[test]
    fn every_listed_tool_is_known() {
        for tool in all() {
            let refusal = Call::parse(&tool.name, None).err().map(|failure| failure.message).unwrap_or_default();
            assert!(!refusal.contains("no such tool"), "{}", tool.name);
        }
    }
}
