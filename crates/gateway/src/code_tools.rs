//! The tools by which a client that writes code reaches all others. Kept short: they stand in for every other schema.

use serde_json::{Value, json};

/// As they are listed in code mode.
pub fn code_mode_tools() -> Vec<Value> {
    vec![
        json!({
            "name": "run_python",
            "description": "Run Python in your own sandbox; state stays. Top-level await works. Tools of the servers you \
                            name are async functions: await mcp_github.create_issue(title='x'). Print what you want to \
                            see. import mcp.runtime for docs, search, memory, save_tool.",
            "inputSchema": {
                "type": "object",
                "properties": {
                    "code": {"type": "string", "minLength": 1},
                    "servers": {"type": "array", "items": {"type": "string"}, "description": "to load; stay loaded"},
                    "timeout": {"type": "integer", "minimum": 1, "maximum": 120, "description": "seconds, default 30"},
                },
                "required": ["code"],
                "additionalProperties": false,
            },
        }),
        json!({
            "name": "search_tools",
            "description": "Find tools of all servers by what they do.",
            "inputSchema": {
                "type": "object",
                "properties": {
                    "query": {"type": "string", "minLength": 1},
                    "limit": {"type": "integer", "minimum": 1, "maximum": 20, "description": "default 5"},
                },
                "required": ["query"],
                "additionalProperties": false,
            },
        }),
    ]
}
