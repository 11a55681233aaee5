//! A minimal MCP server over stdio, as the upstream of gateways. Its tools take no noticeable time: `echo` returns the
//! message, `text` a text of a given length.

use std::io::{BufRead, Write};
use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

/// First argument of this program in the role of this server.
pub(crate) const ROLE: &str = "echo-stdio";

/// Maximum length of a text that the tool `text` returns.
const MAX_TEXT_BYTES: usize = 64 << 20;

/// Returns the command line that starts the server, with a copy of this program at `program`.
pub(crate) fn command_line(program: &Path) -> [String; 2] {
    [program.display().to_string(), ROLE.to_owned()]
}

/// Serves until standard input ends.
pub(crate) fn serve() -> Result<()> {
    handle_all(std::io::stdin().lock(), std::io::stdout().lock()).context("the echo server failed")
}

fn handle_all(input: impl BufRead, mut output: impl Write) -> std::io::Result<()> {
    for line in input.lines() {
        let message: Value = serde_json::from_str(&line?)?;
        if let Some(id) = message.get("id") {
            let response = match handle(&message) {
                Some(result) => json!({"jsonrpc": "2.0", "id": id, "result": result}),
                None => json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32601, "message": "unknown method"}}),
            };
            output.write_all(format!("{response}\n").as_bytes())?;
            output.flush()?;
        }
    }
    Ok(())
}

fn handle(message: &Value) -> Option<Value> {
    match message["method"].as_str()? {
        "initialize" => Some(json!({
            "protocolVersion": message["params"]["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "echo", "version": env!("CARGO_PKG_VERSION")},
        })),
        "ping" => Some(json!({})),
        "tools/list" => {
            let echo_schema = json!({"type": "object", "properties": {"message": {"type": "string"}}});
            let text_schema = json!({"type": "object", "properties": {"bytes": {"type": "integer"}}});
            Some(json!({"tools": [
                {"name": "echo", "description": "Returns the message.", "inputSchema": echo_schema},
                {"name": "text", "description": "Returns a text of that many bytes.", "inputSchema": text_schema},
            ]}))
        }
        "tools/call" => {
            let arguments = &message["params"]["arguments"];
            let text = match arguments["bytes"].as_u64().and_then(|bytes| usize::try_from(bytes).ok()) {
                Some(bytes) => json!("x".repeat(bytes.min(MAX_TEXT_BYTES))),
                None => arguments["message"].clone(),
            };
            Some(json!({"content": [{"type": "text", "text": text}]}))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_gets_one_response_and_notifications_get_none() {
        let call = json!({"name": "echo", "arguments": {"message": "hi"}});
        let input = [
            json!({"jsonrpc": "2.0", "id": 1, "method": "server/discover"}),
            json!({"jsonrpc": "2.0", "method": "notifications/initialized"}),
            json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call}),
        ];
        let input = input.map(|message| message.to_string()).join("\n");
        let mut output = Vec::new();
        handle_all(input.as_bytes(), &mut output).unwrap();
        let responses: Vec<Value> =
            output.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect();
        assert_eq!(responses[0]["error"]["code"], -32601);
        assert_eq!(responses[1]["result"]["content"][0]["text"], "hi");
        assert_eq!(responses.len(), 2);
    }
}
