//! The fixture server as a program. That this test is here also makes `cargo test --workspace` build the program,
//! which tests of other crates start.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

#[test]
fn it_answers_on_its_standard_streams_and_ends_with_its_input() {
    let mut server = Command::new(env!("CARGO_BIN_EXE_conformance-server"))
        .arg("--stdio")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut input = server.stdin.take().expect("its input is piped");
    let mut lines = BufReader::new(server.stdout.take().expect("its output is piped")).lines();
    let client = json!({"name": "test", "version": "1"});
    let hello = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client});
    let call = json!({"name": "greet", "arguments": {"name": "Ada"}});
    for message in [
        json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}),
        json!({"jsonrpc": "2.0", "method": "notifications/initialized"}),
        json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call}),
    ] {
        writeln!(input, "{message}").expect("it reads");
    }
    let mut answer = || -> Value {
        let line = lines.next().expect("it answers").expect("it is text");
        serde_json::from_str(&line).expect("it is JSON")
    };
    assert_eq!(answer()["result"]["serverInfo"]["name"], "ringfence-fixture");
    assert_eq!(answer()["result"], json!({"content": [{"type": "text", "text": "Hello, Ada!"}]}));
    drop(input);
    assert!(server.wait().expect("it is ours").success());
}
