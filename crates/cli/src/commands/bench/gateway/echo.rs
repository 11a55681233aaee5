//! The upstream on standard streams: an MCP server with one tool, `echo`, and nothing that would take time.

use std::io::{BufRead, Write};
use std::process::ExitCode;

use serde_json::{Value, json};

use crate::failure::Failure;

pub(crate) const ROLE: &str = "bench-echo-stdio";

/// Of a text that it makes.
const MOST_BYTES: usize = 64 << 20;

/// Answers until its input ends.
pub(crate) fn serve() -> Result<ExitCode, Failure> {
    answer_all(std::io::stdin().lock(), std::io::stdout().lock())
        .map_err(|error| Failure::new("the echo server failed").because(&error))?;
    Ok(ExitCode::SUCCESS)
}

fn answer_all(input: impl BufRead, mut output: impl Write) -> std::io::Result<()> {
    for line in input.lines() {
        let message: Value = serde_json::from_str(&line?)?;
        if let Some(id) = message.get("id") {
            let outcome = match answer(&message) {
                Some(result) => json!({"jsonrpc": "2.0", "id": id, "result": result}),
                None => json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32601, "message": "unknown"}}),
            };
            output.write_all(format!("{outcome}\n").as_bytes())?;
            output.flush()?;
        }
    }
    Ok(())
}

fn answer(message: &Value) -> Option<Value> {
    match message["method"].as_str()? {
        "initialize" => Some(json!({
            "protocolVersion": message["params"]["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "echo", "version": env!("CARGO_PKG_VERSION")},
        })),
        "ping" => Some(json!({})),
        "tools/list" => {
            let schema = json!({"type": "object", "properties": {"message": {"type": "string"}}});
            let many = json!({"type": "object", "properties": {"bytes": {"type": "integer"}}});
            Some(json!({"tools": [
                {"name": "echo", "description": "Says it again.", "inputSchema": schema},
                {"name": "text", "description": "A text of that many bytes.", "inputSchema": many},
            ]}))
        }
        "tools/call" => {
            let arguments = &message["params"]["arguments"];
            let text = match arguments["bytes"].as_u64().and_then(|bytes| usize::try_from(bytes).ok()) {
                Some(bytes) => json!("x".repeat(bytes.min(MOST_BYTES))),
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
    fn it_answers_what_is_asked_and_nothing_else() {
        let call = json!({"name": "echo", "arguments": {"message": "hi"}});
        let said = [
            json!({"jsonrpc": "2.0", "id": 1, "method": "server/discover"}),
            json!({"jsonrpc": "2.0", "method": "notifications/initialized"}),
            json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call}),
        ];
        let said = said.map(|message| message.to_string()).join("\n");
        let mut heard = Vec::new();
        answer_all(said.as_bytes(), &mut heard).unwrap();
        let heard: Vec<Value> =
            heard.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect();
        assert_eq!(heard[0]["error"]["code"], -32601);
        assert_eq!(heard[1]["result"]["content"][0]["text"], "hi");
        assert_eq!(heard.len(), 2);
    }
}
