//! Calls without `session_id`: which session they use, over every transport and in both protocol eras.

mod client;
mod connections;
mod names;
mod processes;

use client::Stdio;
use ringfence_testkit::Server;
use serde_json::{Value, json};

fn code(code: &str) -> Value {
    json!({"code": code})
}

fn fields(response: &Value) -> &Value {
    &response["result"]["structuredContent"]
}

/// The text of all content blocks.
fn text(response: &Value) -> String {
    let blocks = response["result"]["content"].as_array().unwrap_or_else(|| panic!("no content: {response}"));
    blocks.iter().filter_map(|block| block["text"].as_str()).collect::<Vec<_>>().join("\n")
}

fn session_id(response: &Value) -> String {
    fields(response)["session_id"].as_str().unwrap_or_else(|| panic!("no session: {response}")).to_owned()
}

/// Whether the text tells the model to pass the id of the session.
fn asks_for_id(response: &Value) -> bool {
    let session = session_id(response);
    text(response).contains(&format!("new session {session}; pass session_id to continue"))
}

#[test]
fn calls_of_a_connection_share_variables_files_and_kernels() {
    let mut client = Stdio::start(&[]);
    let first = client.call("execute_code", &code("x = 41"));
    assert_eq!(fields(&first)["session_created"], true, "{first}");
    assert!(!asks_for_id(&first) && !text(&first).contains("session_id"), "{first}");
    let second = client.call("execute_code", &code("x + 1"));
    assert_eq!((&fields(&second)["result"], &fields(&second)["session_created"]), (&json!("42"), &json!(false)));
    assert_eq!(session_id(&first), session_id(&second));
    let python = client.call("run_python", &code("x += 1\nx"));
    assert_eq!((text(&python).as_str(), session_id(&python)), ("42", session_id(&first)));

    let written = client.call("write_file", &json!({"path": "a.txt", "content": "text"}));
    assert_eq!(session_id(&written), session_id(&first));
    let command = client.call("execute_command", &json!({"command": "cat a.txt"}));
    assert_eq!(fields(&command)["stdout"], "text", "{command}");
    let read = client.call("run_python", &code("open('a.txt').read()"));
    assert_eq!(text(&read), "'text'");
}

#[test]
fn connection_has_a_default_session_for_each_template() {
    let mut client = Stdio::start(&[]);
    let python = client.call("execute_code", &code("x = 'python'"));
    let node = client.call("execute_code", &json!({"code": "x = 'node'", "template": "node"}));
    assert_ne!(session_id(&python), session_id(&node));
    // A command and a file tool follow the last session; code follows its template.
    for (tool, arguments, expected) in [
        ("execute_command", json!({"command": "true"}), &node),
        ("write_file", json!({"path": "a", "content": ""}), &node),
        ("execute_code", json!({"code": "print(x)"}), &python),
        ("list_files", json!({}), &python),
        ("execute_command", json!({"command": "true"}), &python),
        ("execute_command", json!({"command": "true", "template": "node"}), &node),
        ("read_file", json!({"path": "a"}), &node),
    ] {
        let response = client.call(tool, &arguments);
        assert_eq!(session_id(&response), session_id(expected), "{tool} {arguments}: {response}");
    }
}

#[test]
fn first_file_call_creates_the_default_session() {
    let mut client = Stdio::start(&[]);
    let written = client.call("write_file", &json!({"path": "a.txt", "content": "text"}));
    assert_eq!(fields(&written)["session_created"], true, "{written}");
    let read = client.call("execute_code", &code("open('a.txt').read()"));
    assert_eq!((&fields(&read)["result"], session_id(&read)), (&json!("'text'"), session_id(&written)));
}

#[test]
fn new_session_does_not_replace_the_default_one() {
    let mut client = Stdio::start(&[]);
    let default = client.call("execute_code", &code("x = 'default'"));
    for tool in ["execute_code", "run_python"] {
        let other = client.call(tool, &json!({"code": "x = 'other'", "session_id": "new"}));
        assert_eq!(fields(&other)["session_created"], true, "{other}");
        assert!(session_id(&other) != session_id(&default) && asks_for_id(&other), "{other}");
        let again = client.call(tool, &json!({"code": "x", "session_id": session_id(&other)}));
        assert!(text(&again).starts_with("'other'") && session_id(&again) == session_id(&other), "{again}");
        let without = client.call(tool, &code("x"));
        assert!(text(&without).starts_with("'default'"), "{without}");
    }
    let in_node = client.call("execute_code", &json!({"code": "1", "template": "node", "session_id": "new"}));
    let refused = client.call("run_python", &json!({"code": "1", "session_id": session_id(&in_node)}));
    assert!(refused.to_string().contains("does not run Python"), "{refused}");
    let file = client.call("write_file", &json!({"path": "a", "content": "", "session_id": "new"}));
    assert!(file.to_string().contains("a new session has no files"), "{file}");
}

#[test]
fn ended_default_session_is_replaced_with_a_notice() {
    let mut client = Stdio::start(&[]);
    let first = client.call("execute_code", &code("x = 1\nopen('a.txt', 'w').write('1')"));
    client.call("stop_session", &json!({"session_id": session_id(&first)}));
    let missing = client.call("read_file", &json!({"path": "a.txt"}));
    assert!(missing.to_string().contains("variables and files are lost"), "{missing}");
    let replaced = client.call("execute_code", &code("'x' in dir()"));
    let content = fields(&replaced);
    assert_eq!((&content["session_created"], &content["result"]), (&json!(true), &json!("False")), "{replaced}");
    assert!(content["notices"].to_string().contains("variables and files are lost"), "{replaced}");
    assert!(text(&replaced).contains("variables and files are lost"), "{replaced}");
    let next = client.call("execute_code", &code("1"));
    assert_eq!((&fields(&next)["session_created"], &fields(&next)["notices"]), (&json!(false), &Value::Null), "{next}");
}

#[test]
fn other_flavor_is_reported_with_the_way_to_get_it() {
    let mut client = Stdio::start(&[]);
    let first = client.call("execute_code", &json!({"code": "1", "flavor": "medium"}));
    let second = client.call("execute_code", &json!({"code": "1", "flavor": "small"}));
    assert_eq!(session_id(&first), session_id(&second));
    assert!(fields(&second)["notices"].to_string().contains("\\\"new\\\" creates another"), "{second}");
}

#[test]
fn ids_of_earlier_versions_remain_valid() {
    let server = Server::start(&[], &[]);
    let session = server.create_session("python", "x = 41");
    assert!(session.starts_with("s-") && session.len() == 28, "{session}");
    let state = server.kill();
    let old = format!("session-{}", "0123456789abcdef".repeat(2));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let store = ringfence_store::Store::open(state.path()).expect("open the store");
        let mut record = store.sessions().await.expect("sessions").remove(0);
        store.remove_session(&record.id).await.expect("remove the record");
        record.id = ringfence_core::SessionId::from_caller(old.as_str());
        store.upsert_session(record).await.expect("store the record");
        store.close().await;
    });
    let server = Server::start_again(state, &[], &[]);
    assert_eq!(server.execute(&old, "x + 1")["result"], "42");
}
