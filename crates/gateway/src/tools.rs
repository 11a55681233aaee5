//! The built-in tools: their entries in `tools/list`, the action that each needs, and their arguments.
//!
//! Descriptions are short, because this list occupies a part of every agent's context.

pub(crate) mod arguments;

use ringfence_session::SessionOptions;
use serde_json::{Map, Value, json};

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

/// The action that a built-in tool needs.
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

/// The description of `session_id`. Calls without it need none: results say when an id must be passed.
const SESSION_ID: &str = "\"new\" for another session";

/// The encodings of file contents.
pub(crate) const ENCODINGS: [&str; 2] = ["utf-8", "base64"];

/// Number of tools that a search returns by default.
pub(crate) const DEFAULT_FOUND_TOOLS: usize = 5;

/// Maximum number of tools that a search returns.
pub(crate) const MAX_FOUND_TOOLS: usize = 20;

/// The tools of code mode. They have no output schemas, which would occupy a part of every agent's context.
pub fn code_mode_tools(network: &str) -> Vec<Value> {
    let run_python = tool(
        RUN_PYTHON,
        &with_network(
            "Run Python in your own sandbox, which keeps variables, functions and imports from call to call; top-level \
         await works. MCP servers named in `servers` have async functions: `await \
         mcp_<server>.<tool>(arg=...)`, with plain Python as result; asyncio.gather runs calls at once. Find tools with \
         search_tools, or in the code: `import mcp.runtime; mcp.runtime.search_tool_docs_sync(query)`. Print what you want \
         to see. More: resource://ringfence/capabilities",
            network,
        ),
        input_schema(
            json!({
                "code": {"type": "string", "minLength": 1},
                "servers": {"type": "array", "items": {"type": "string"}, "description": "usable in later calls too"},
                "session_id": {"type": "string"},
                "timeout": {"type": "integer", "minimum": 1, "description": "seconds; 30 by default"},
            }),
            &["code"],
        ),
        None,
        run_hints(),
    );
    let search_tools = tool(
        SEARCH_TOOLS,
        "Find tools of all MCP servers by what they do.",
        input_schema(
            json!({
                "query": {"type": "string", "minLength": 1},
                "limit": {"type": "integer", "minimum": 1, "maximum": MAX_FOUND_TOOLS, "description": "5 by default"},
            }),
            &["query"],
        ),
        None,
        read_hints(),
    );
    vec![run_python, search_tools]
}

/// The tools for sessions, in the order in which they are listed.
pub(crate) fn session_tools(choice: &SessionOptions) -> Vec<Value> {
    vec![
        tool(
            EXECUTE_CODE,
            &with_network(
                "Run code in a sandbox; variables and files stay for the next call in its session.",
                &choice.network,
            ),
            code_input_schema(choice),
            Some(run_output_schema()),
            run_hints(),
        ),
        tool(
            EXECUTE_COMMAND,
            &with_network("Run a shell command in a sandbox, with pipes and redirections.", &choice.network),
            run_input_schema("command", choice),
            Some(run_output_schema()),
            run_hints(),
        ),
        tool(
            GET_SESSIONS,
            "List your live sessions, or one.",
            input_schema(json!({"session_id": {"type": "string"}}), &[]),
            Some(object_schema(json!({"sessions": {"type": "array", "items": {"type": "object"}}}), &["sessions"])),
            read_hints(),
        ),
        tool(
            STOP_SESSION,
            "End a session and free its resources.",
            input_schema(json!({"session_id": {"type": "string"}}), &["session_id"]),
            Some(object_schema(
                json!({"session_id": {"type": "string"}, "was_running": {"type": "boolean"}}),
                &["session_id", "was_running"],
            )),
            write_hints(),
        ),
        tool(
            GET_VOLUME_PATH,
            "List host directories shared with sandboxes.",
            input_schema(json!({}), &[]),
            Some(object_schema(json!({"volumes": {"type": "array", "items": {"type": "object"}}}), &["volumes"])),
            read_hints(),
        ),
        tool(
            READ_FILE,
            "Read a file of a session.",
            file_input_schema(
                json!({
                    "offset": {"type": "integer", "minimum": 0, "description": "bytes"},
                    "length": {"type": "integer", "minimum": 1, "description": "bytes"},
                }),
                &["path"],
            ),
            Some(object_schema(
                json!({
                    "path": {"type": "string"},
                    "size": {"type": "integer"},
                    "offset": {"type": "integer"},
                    "encoding": {"enum": ENCODINGS},
                    "content": {"type": "string"},
                }),
                &["path", "size", "encoding", "content"],
            )),
            read_hints(),
        ),
        tool(
            WRITE_FILE,
            "Write a file of a session; missing directories are created.",
            file_input_schema(
                json!({
                    "content": {"type": "string"},
                    "encoding": {"enum": ENCODINGS, "description": "of content; utf-8 by default"},
                }),
                &["path", "content"],
            ),
            Some(object_schema(json!({"path": {"type": "string"}, "size": {"type": "integer"}}), &["path", "size"])),
            write_hints(),
        ),
        tool(
            LIST_FILES,
            "List a directory of a session.",
            file_input_schema(json!({}), &[]),
            Some(object_schema(
                json!({
                    "path": {"type": "string"},
                    "entries": {"type": "array", "items": {"type": "object"}},
                    "total": {"type": "integer"},
                    "truncated": {"type": "boolean"},
                }),
                &["path", "entries", "total", "truncated"],
            )),
            read_hints(),
        ),
    ]
}

fn tool(
    name: &str,
    description: &str,
    input_schema: Map<String, Value>,
    output_schema: Option<Map<String, Value>>,
    hints: Value,
) -> Value {
    let mut tool = json!({"name": name, "description": description});
    tool["inputSchema"] = Value::Object(input_schema);
    if let Some(schema) = output_schema {
        tool["outputSchema"] = Value::Object(schema);
    }
    tool["annotations"] = hints;
    tool
}

/// Adds what sessions may reach to a description.
fn with_network(description: &str, network: &str) -> String {
    if network.is_empty() { description.to_owned() } else { format!("{description} {network}") }
}

/// Hints for tools that run code. They promise nothing, because code may write to shared volumes and reach the network
/// where the configuration allows it.
fn run_hints() -> Value {
    json!({"readOnlyHint": false, "destructiveHint": true, "idempotentHint": false, "openWorldHint": true})
}

fn read_hints() -> Value {
    json!({"readOnlyHint": true, "openWorldHint": false})
}

fn write_hints() -> Value {
    json!({"readOnlyHint": false, "destructiveHint": true, "idempotentHint": true, "openWorldHint": false})
}

fn run_input_schema(field: &str, choice: &SessionOptions) -> Map<String, Value> {
    let properties = json!({
        field: {"type": "string", "minLength": 1},
        "template": {"type": "string", "description": choice.templates},
        "flavor": {"type": "string", "description": choice.flavors},
        "session_id": {"type": "string", "description": SESSION_ID},
        "timeout": {"type": "number", "exclusiveMinimum": 0, "description": "seconds"},
    });
    input_schema(properties, &[field])
}

fn code_input_schema(choice: &SessionOptions) -> Map<String, Value> {
    let mut schema = run_input_schema("code", choice);
    if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
        properties["template"]["description"] = json!(choice.templates_with_packages);
        let servers = json!({"type": "array", "items": {"type": "string"}, "description": "MCP servers for the code"});
        properties.insert("servers".into(), servers);
    }
    schema
}

fn file_input_schema(mut properties: Value, required: &[&str]) -> Map<String, Value> {
    properties["session_id"] = json!({"type": "string"});
    properties["path"] = json!({"type": "string", "description": "in /workspace"});
    input_schema(properties, required)
}

fn run_output_schema() -> Map<String, Value> {
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
    object_schema(
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

fn input_schema(properties: Value, required: &[&str]) -> Map<String, Value> {
    let mut schema = object_schema(properties, required);
    schema.insert("additionalProperties".into(), false.into());
    schema
}

fn object_schema(properties: Value, required: &[&str]) -> Map<String, Value> {
    let mut schema = Map::new();
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

    const NETWORK: &str = "Network: package registries (pip, npm), api.example.com only.";

    fn choice() -> SessionOptions {
        SessionOptions {
            templates: "python (default), node, bash, data".into(),
            templates_with_packages: "python (default), node, bash, data (numpy pandas)".into(),
            flavors: "small (default), medium, large".into(),
            network: NETWORK.into(),
        }
    }

    fn names() -> Vec<String> {
        let tools = session_tools(&choice()).into_iter().chain(code_mode_tools(NETWORK));
        tools.map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn session_tools_list() {
        insta::assert_json_snapshot!(session_tools(&choice()));
    }

    #[test]
    fn session_tools_list_is_small() {
        let bytes = serde_json::to_string(&session_tools(&choice())).unwrap().len();
        assert!(bytes < 6144, "{bytes} bytes");
    }

    #[test]
    fn code_mode_tools_list() {
        insta::assert_json_snapshot!(code_mode_tools(NETWORK));
    }

    #[test]
    fn every_tool_has_an_action() {
        for name in names() {
            assert!(action(&name).is_some(), "{name}");
        }
        assert_eq!(action("rm"), None);
    }

    #[test]
    fn every_listed_tool_is_parsed() {
        for name in names() {
            let refusal = ToolCall::parse(&name, None).err().map(|failure| failure.message).unwrap_or_default();
            assert!(!refusal.contains("unknown tool"), "{name}");
        }
    }
}
