//! The built-in tools: their entries in `tools/list`, the actions they take, and their arguments. Descriptions are short,
//! because every agent pays for this list in each conversation.

pub(crate) mod arguments;

use std::sync::Arc;

use ringfence_session::Choice;
use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use serde_json::{Value, json};

use crate::authorize::Action;

pub(crate) const EXECUTE_CODE: &str = "execute_code";
pub(crate) const EXECUTE_COMMAND: &str = "execute_command";
pub(crate) const GET_SESSIONS: &str = "get_sessions";
pub(crate) const STOP_SESSION: &str = "stop_session";
pub(crate) const GET_VOLUME_PATH: &str = "get_volume_path";
pub(crate) const READ_FILE: &str = "read_file";
pub(crate) const WRITE_FILE: &str = "write_file";
pub(crate) const LIST_FILES: &str = "list_files";
pub(crate) const RUN_PYTHON: &str = "run_python";
pub(crate) const SEARCH_TOOLS: &str = "search_tools";

/// The action of a built-in tool.
pub(crate) fn action(tool: &str) -> Option<Action> {
    Some(match tool {
        EXECUTE_CODE | RUN_PYTHON => Action::RunCode,
        EXECUTE_COMMAND => Action::RunCommand,
        GET_SESSIONS | STOP_SESSION | GET_VOLUME_PATH => Action::ManageSessions,
        READ_FILE | LIST_FILES => Action::ReadFiles,
        WRITE_FILE => Action::WriteFiles,
        SEARCH_TOOLS => Action::UseServers,
        _ => return None,
    })
}

/// The encodings of file contents.
pub(crate) const ENCODINGS: [&str; 2] = ["utf-8", "base64"];

/// Maximum number of tools that a search returns.
pub(crate) const MAX_FOUND_TOOLS: usize = 20;

/// The tools by which an agent reaches those of servers from code: without schemas of their answers, since they are to
/// cost little.
pub(crate) fn code_mode() -> Vec<Tool> {
    let runs = ToolAnnotations::new().read_only(false).destructive(true).idempotent(false).open_world(true);
    let reads = ToolAnnotations::new().read_only(true).open_world(false);
    let run_python = Tool::new(
        RUN_PYTHON,
        "Run Python in your own sandbox, which keeps variables, functions and imports from call to call; top-level \
         await works. MCP servers named in `servers` are there as async functions: `await \
         mcp_<server>.<tool>(arg=...)`, with plain Python as result; asyncio.gather runs calls at once. Find tools with \
         search_tools, or in the code: `import mcp.runtime; mcp.runtime.search_tool_docs_sync(query)`. Print what you want \
         to see. More: resource://ringfence/capabilities",
        input(
            json!({
                "code": {"type": "string", "minLength": 1},
                "servers": {"type": "array", "items": {"type": "string"}, "description": "stay for later calls"},
                "timeout": {"type": "integer", "minimum": 1, "description": "seconds; 30 by default"},
            }),
            &["code"],
        ),
    );
    let search_tools = Tool::new(
        SEARCH_TOOLS,
        "Find tools of all MCP servers by what they do.",
        input(
            json!({
                "query": {"type": "string", "minLength": 1},
                "limit": {"type": "integer", "minimum": 1, "maximum": MAX_FOUND_TOOLS, "description": "5 by default"},
            }),
            &["query"],
        ),
    );
    vec![run_python.with_annotations(runs), search_tools.with_annotations(reads)]
}

/// The same, as they are listed.
pub fn code_mode_tools() -> Vec<Value> {
    code_mode().into_iter().map(|tool| json!(tool)).collect()
}

/// All tools of sessions, in the order in which they are listed.
pub(crate) fn all(choice: &Choice) -> Vec<Tool> {
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
            code_input(choice),
            run_output(),
            &runs,
        ),
        tool(
            EXECUTE_COMMAND,
            "Run a shell line in a sandbox, with pipes and redirections.",
            run_input("command", choice),
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
                    "total": {"type": "integer"},
                    "truncated": {"type": "boolean"},
                }),
                &["path", "entries", "total", "truncated"],
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

fn run_input(what: &str, choice: &Choice) -> JsonObject {
    let properties = json!({
        what: {"type": "string", "minLength": 1},
        "template": {"type": "string", "description": choice.templates},
        "flavor": {"type": "string", "description": choice.flavors},
        "session_id": {"type": "string", "description": "omit for a new session"},
        "timeout": {"type": "number", "exclusiveMinimum": 0, "description": "seconds"},
    });
    input(properties, &[what])
}

fn code_input(choice: &Choice) -> JsonObject {
    let mut schema = run_input("code", choice);
    if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
        let servers = json!({"type": "array", "items": {"type": "string"}, "description": "MCP servers for the code"});
        properties.insert("servers".into(), servers);
    }
    schema
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
        "notices": {"type": "array", "items": {"type": "string"}},
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
    use super::arguments::ToolCall;
    use super::*;

    fn choice() -> Choice {
        Choice { templates: "python (default), node, bash".into(), flavors: "small (default), medium, large".into() }
    }

    #[test]
    fn the_list() {
        insta::assert_json_snapshot!(all(&choice()));
    }

    #[test]
    fn the_list_is_cheap() {
        let bytes = serde_json::to_string(&all(&choice())).unwrap().len();
        assert!(bytes < 6144, "{bytes} bytes");
    }

    #[test]
    fn the_list_of_code_mode() {
        insta::assert_json_snapshot!(code_mode());
    }

    #[test]
    fn every_tool_has_an_action() {
        for tool in all(&choice()).into_iter().chain(code_mode()) {
            assert!(action(&tool.name).is_some(), "{}", tool.name);
        }
        assert_eq!(action("rm"), None);
    }

    #[test]
    fn every_listed_tool_is_known() {
        for tool in all(&choice()).into_iter().chain(code_mode()) {
            let refusal = ToolCall::parse(&tool.name, None).err().map(|failure| failure.message).unwrap_or_default();
            assert!(!refusal.contains("no such tool"), "{}", tool.name);
        }
    }
}
