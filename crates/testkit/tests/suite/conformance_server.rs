//! The conformance server as a program.

use std::process::Command;

use serde_json::json;

use crate::stdio_client::StdioClient;

fn server() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_conformance-server"));
    command.arg("--stdio");
    command
}

#[test]
fn stdio_server_responds_and_ends_with_its_input() {
    let mut client = StdioClient::connect(&mut server());
    let response = client.request(2, "tools/call", &json!({"name": "greet", "arguments": {"name": "Ada"}}));
    assert_eq!(response["result"], json!({"content": [{"type": "text", "text": "Hello, Ada!"}]}));
    client.close_input();
    assert!(client.wait().success());
}

#[test]
fn clients_of_the_older_era_are_notified_of_changes_without_subscription() {
    let mut client = StdioClient::connect(&mut server());
    client.send(2, "tools/call", &json!({"name": "test_trigger_tool_change"}));
    let messages = [client.receive(), client.receive()];
    assert!(messages.iter().any(|message| message["method"] == "notifications/tools/list_changed"), "{messages:?}");
    assert!(messages.iter().any(|message| message["id"] == 2 && message["error"].is_null()), "{messages:?}");
}
