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
        &format!(
            "Run Python in your own sandbox, which keeps variables and imports from call to call; top-level await works. \
             MCP servers named in `servers` have async functions: `await mcp_<server>.<tool>(arg=...)`, with plain \
             Python as result; asyncio.gather runs calls at once. Find tools with search_tools, or in the code: \
             `import mcp.runtime; mcp.runtime.search_tool_docs_sync(query)`. Print what you want to see. {network} \
             More: resource://ringfence/capabilities"
        ),
        input_schema(
            json!({
                "code": {"type": "string"},
                "servers": {"type": "array", "items": {"type": "string"}, "description": "stay for later calls"},
                "session_id": {"type": "string", "description": SESSION_ID},
                "timeout": {"type": "number", "description": "seconds"},
            }),
            &["code"],
        ),
        None,
        run_hints(),
    );
    let search_tools = tool(
        SEARCH_TOOLS,
        "Find tools of all MCP servers by what they do.",
        input_schema(json!({"query": {"type": "string"}, "limit": {"type": "integer"}}), &["query"]),
        None,
        read_hints(),
    );
    vec![run_python, search_tools]
}

/// The tools for sessions, in the order in which they are listed.
pub fn session_tools(choice: &SessionOptions) -> Vec<Value> {
    vec![
        tool(
            EXECUTE_CODE,
            &execute_code_description(choice),
            code_input_schema(choice),
            Some(run_output_schema()),
            run_hints(),
        ),
        tool(
            EXECUTE_COMMAND,
            "Run a shell command in such a sandbox, with pipes and redirections.",
            run_input_schema("command", choice),
            Some(run_output_schema()),
            run_hints(),
        ),
        tool(
            GET_SESSIONS,
            "List your live sessions, or one.",
            input_schema(json!({"session_id": {"type": "string"}}), &[]),
            Some(output_schema(json!({"sessions": {"type": "array", "items": {"type": "object"}}}), &["sessions"])),
            read_hints(),
        ),
        tool(
            STOP_SESSION,
            "End a session and free its resources.",
            input_schema(json!({"session_id": {"type": "string"}}), &["session_id"]),
            Some(output_schema(
                json!({"session_id": {"type": "string"}, "was_running": {"type": "boolean"}}),
                &["session_id", "was_running"],
            )),
            write_hints(),
        ),
        tool(
            GET_VOLUME_PATH,
            "List host directories shared with sandboxes.",
            input_schema(json!({}), &[]),
            Some(output_schema(json!({"volumes": {"type": "array", "items": {"type": "object"}}}), &["volumes"])),
            read_hints(),
        ),
        tool(
            READ_FILE,
            "Read a file of a session; a picture is returned as an image.",
            file_input_schema(
                json!({
                    "offset": {"type": "integer", "description": "bytes"},
                    "length": {"type": "integer", "description": "bytes"},
                }),
                &["path"],
            ),
            Some(output_schema(
                json!({
                    "path": {"type": "string"},
                    "size": {"type": "integer"},
                    "offset": {"type": "integer"},
                    "encoding": {"type": "string", "enum": ENCODINGS},
                    "content": {"type": "string"},
                    "mime_type": {"type": "string"},
                    "truncated": {"type": "boolean"},
                    "resource": {"type": "string"},
                }),
                &["path", "size"],
            )),
            read_hints(),
        ),
        tool(
            WRITE_FILE,
            "Write a file of a session; missing directories are created.",
            file_input_schema(
                json!({
                    "content": {"type": "string"},
                    "encoding": {"type": "string", "enum": ENCODINGS, "description": "of content; utf-8 by default"},
                }),
                &["path", "content"],
            ),
            Some(output_schema(json!({"path": {"type": "string"}, "size": {"type": "integer"}}), &["path", "size"])),
            write_hints(),
        ),
        tool(
            LIST_FILES,
            "List a directory of a session.",
            file_input_schema(json!({}), &[]),
            Some(output_schema(
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

/// States at once what sessions have and lack, so that a model does not find out by trial.
fn execute_code_description(choice: &SessionOptions) -> String {
    let packages = if choice.packages.is_empty() { String::new() } else { format!(" ({})", choice.packages) };
    format!(
        "Run code in a Linux sandbox: {}, by template. Variables, imports and files in /workspace stay for later calls in \
         its session. The value of the last expression is returned, and displayed images as images; top-level await \
         works. Templates have only standard libraries{packages}. {} No root, no keyboard input, no screen. The user's \
         files are not there, except for volumes.",
        choice.languages, choice.network
    )
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
    let default = |name: &str| format!("{name} by default");
    let properties = json!({
        field: {"type": "string"},
        "template": {"type": "string", "enum": choice.templates, "description": default(&choice.default_template)},
        "flavor": {"type": "string", "enum": choice.flavors, "description": default(&choice.default_flavor)},
        "session_id": {"type": "string", "description": SESSION_ID},
        "timeout": {"type": "number", "description": "seconds"},
    });
    input_schema(properties, &[field])
}

fn code_input_schema(choice: &SessionOptions) -> Map<String, Value> {
    let mut schema = run_input_schema("code", choice);
    if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
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
        "stdout": {"type": ["string", "null"]},
        "stderr": {"type": ["string", "null"]},
        "result": {"type": ["string", "null"]},
        "duration_ms": {"type": "integer"},
        "truncated": {"type": "boolean"},
        "error": {"type": "object"},
        "notices": {"type": "array", "items": {"type": "string"}},
        "stdout_resource": {"type": "string"},
        "stderr_resource": {"type": "string"},
        "result_resource": {"type": "string"},
        "error_resource": {"type": "string"},
    });
    output_schema(
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

/// A schema with only those keywords that every converter of client libraries accepts: the strict mode of `OpenAI` adds
/// `additionalProperties` itself, and the library for Gemini fails at `"additionalProperties": false`.
fn input_schema(properties: Value, required: &[&str]) -> Map<String, Value> {
    object_schema(properties, required)
}

/// The schema of `structuredContent`, which has the fields of a failure instead if the tool failed: some clients check it
/// even then.
fn output_schema(properties: Value, required: &[&str]) -> Map<String, Value> {
    let mut schema = object_schema(properties, &[]);
    schema.insert("anyOf".into(), json!([{"required": required}, {"required": ["error_code", "message"]}]));
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
            templates: ["python", "node", "bash", "data"].map(Into::into).into(),
            default_template: "python".into(),
            languages: "Python, JavaScript (Node.js), bash".into(),
            packages: "data has numpy pandas matplotlib pillow requests openpyxl".into(),
            flavors: ["small", "medium", "large"].map(Into::into).into(),
            default_flavor: "small".into(),
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
        assert!(bytes < 6656, "{bytes} bytes");
    }

    #[test]
    fn code_mode_tools_list() {
        insta::assert_json_snapshot!(code_mode_tools(NETWORK));
    }

    /// The rules were found with google-genai 2.34 (which fails at a boolean `additionalProperties`), google-adk 2.13 and
    /// openai-agents 0.24, which adds `additionalProperties` and makes all properties required.
    #[test]
    fn input_schemas_have_only_keywords_that_all_converters_accept() {
        for tool in session_tools(&choice()).into_iter().chain(code_mode_tools(NETWORK)) {
            let schema = tool["inputSchema"].as_object().unwrap();
            assert!(schema.keys().all(|key| ["type", "properties", "required"].contains(&key.as_str())), "{schema:?}");
            assert_eq!(schema["type"], "object");
            for (name, property) in schema["properties"].as_object().unwrap() {
                let property = property.as_object().unwrap();
                let known = ["type", "description", "enum", "items"];
                assert!(property.keys().all(|key| known.contains(&key.as_str())), "{name}: {property:?}");
                assert!(property["type"].is_string(), "{name}: {property:?}");
                assert_eq!(property["type"] == "array", property.contains_key("items"), "{name}");
                let choices = property.get("enum").and_then(Value::as_array);
                assert!(choices.is_none_or(|choices| !choices.is_empty() && choices.iter().all(Value::is_string)));
            }
        }
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
