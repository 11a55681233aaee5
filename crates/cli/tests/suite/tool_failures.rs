//! Failures of built-in tools: results for clients of MCP, JSON-RPC errors for plain requests.

use ringfence_testkit::Server;
use serde_json::{Value, json};

/// Calls a tool as a client that declares a protocol version.
fn call(server: &Server, tool: &str, arguments: &Value) -> Value {
    let headers =
        format!("Host: {}\r\nContent-Type: application/json\r\nMCP-Protocol-Version: 2025-11-25\r\n", server.address);
    let params = json!({"name": tool, "arguments": arguments});
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).to_string();
    serde_json::from_str(&server.http("POST /mcp", &headers, &body).1).expect("the body is JSON")
}

#[test]
fn failure_is_a_result_with_the_message_and_the_next_step() {
    let server = Server::start(&[], &[]);
    for (tool, arguments, error_code, message, next_step) in [
        (
            "execute_code",
            json!({"code": "1", "template": "cobol"}),
            "VALIDATION_ERROR",
            "unknown template `cobol`",
            "use one of those",
        ),
        (
            "execute_code",
            json!({"code": "1", "sesion": "x"}),
            "VALIDATION_ERROR",
            "unknown field `sesion`",
            "did you mean `session_id`?",
        ),
        (
            "execute_command",
            json!({"command": "x".repeat(100_000)}),
            "VALIDATION_ERROR",
            "command has 100000 bytes",
            "write_file",
        ),
        (
            "execute_code",
            json!({"code": "1", "session_id": "s-unknown"}),
            "SESSION_NOT_FOUND",
            "session not found",
            "get_sessions",
        ),
        ("run_python", json!({"code": ""}), "VALIDATION_ERROR", "code is empty", "send a non-empty code"),
    ] {
        let response = call(&server, tool, &arguments);
        let result = &response["result"];
        let text = result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{response}"));
        assert!(result["isError"] == true && text.contains(message) && text.contains(next_step), "{text}");
        let fields = &result["structuredContent"];
        assert_eq!(fields["error_code"], error_code, "{fields}");
        assert!(fields["message"].as_str().is_some_and(|text| text.contains(message)), "{fields}");
        assert!(fields["category"].is_string() && fields["recovery_suggestions"].is_array(), "{fields}");

        let plain = server.call(tool, &arguments);
        if tool == "run_python" {
            assert_eq!(plain["result"]["structuredContent"]["status"], "validation_error", "{plain}");
        } else {
            assert_eq!(
                (&plain["error"]["code"], &plain["error"]["data"]["error_code"]),
                (&json!(-32602), &json!(error_code))
            );
        }
    }
    let unknown = call(&server, "rm", &json!({}));
    assert_eq!((&unknown["error"]["code"], &unknown["error"]["message"]), (&json!(-32602), &json!("unknown tool")));
    assert_eq!(call(&server, "execute_code", &json!([1]))["error"]["code"], -32602, "a malformed request");
}

#[test]
fn timeout_over_the_maximum_is_shortened_and_said() {
    let server = Server::start(&[], &[]);
    for (tool, arguments) in [
        ("execute_code", json!({"code": "1", "timeout": 100_000})),
        ("execute_command", json!({"command": "true", "timeout": "100000"})),
        ("run_python", json!({"code": "1", "timeout": 1e300})),
    ] {
        let result = call(&server, tool, &arguments)["result"].take();
        let text = result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{result}"));
        assert!(result["isError"] == false && text.contains("shortened to the maximum of 120 s"), "{tool}: {text}");
    }
}

#[test]
fn arguments_that_strict_clients_send_mean_not_given() {
    let server = Server::start(&[], &[]);
    let arguments =
        json!({"code": "1 + 1", "template": " Python3 ", "flavor": "", "session_id": "", "timeout": 0, "servers": []});
    let result = call(&server, "execute_code", &arguments)["result"].take();
    assert_eq!((&result["structuredContent"]["result"], &result["isError"]), (&json!("2"), &json!(false)), "{result}");
}
