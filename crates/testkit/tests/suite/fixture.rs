//! The fixture server as a program.

use std::process::Command;

use serde_json::json;

use crate::talk::Talk;

#[test]
fn it_answers_on_its_standard_streams_and_ends_with_its_input() {
    let mut server = Talk::greet(Command::new(env!("CARGO_BIN_EXE_conformance-server")).arg("--stdio"));
    let answer = server.ask(2, "tools/call", &json!({"name": "greet", "arguments": {"name": "Ada"}}));
    assert_eq!(answer["result"], json!({"content": [{"type": "text", "text": "Hello, Ada!"}]}));
    server.end_input();
    assert!(server.wait().success());
}

#[test]
fn older_clients_hear_of_changes_without_asking() {
    let mut server = Talk::greet(Command::new(env!("CARGO_BIN_EXE_conformance-server")).arg("--stdio"));
    server.say(2, "tools/call", &json!({"name": "test_trigger_tool_change"}));
    let heard = [server.hear(), server.hear()];
    assert!(heard.iter().any(|message| message["method"] == "notifications/tools/list_changed"), "{heard:?}");
    assert!(heard.iter().any(|message| message["id"] == 2 && message["error"].is_null()), "{heard:?}");
}
