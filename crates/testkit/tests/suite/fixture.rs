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
