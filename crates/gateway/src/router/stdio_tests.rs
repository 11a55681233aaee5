//! The gateway over stdio.

use ringfence_mcp::{rpc, stdio};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;

use crate::Gateway;

async fn converse(messages: &[Value]) -> Vec<Value> {
    converse_with(messages, 16).await
}

async fn converse_with(messages: &[Value], at_once: usize) -> Vec<Value> {
    let input = messages.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n") + "\n";
    let (output, mut answers) = tokio::io::duplex(1 << 20);
    stdio::serve(Gateway::without_backend("none here"), at_once, std::io::Cursor::new(input), output).await.unwrap();
    let mut text = String::new();
    answers.read_to_string(&mut text).await.unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test]
async fn the_older_era_opens_with_initialize() {
    let answers = converse(&[
        json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
            "protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}}),
        json!({"jsonrpc": "2.0", "method": "notifications/initialized"}),
        json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "get_volume_path"}}),
    ])
    .await;
    assert_eq!(answers[0]["result"]["protocolVersion"], "2024-11-05");
    insta::assert_snapshot!(answers[1]["error"]);
}

#[tokio::test]
async fn the_newer_era_needs_no_opening() {
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let answers = converse(&[
        json!({"jsonrpc": "2.0", "id": 1, "method": "server/discover", "params": {"_meta": meta}}),
        json!({"jsonrpc": "2.0", "id": 2, "method": "tools/list", "params": {"_meta": meta}}),
    ])
    .await;
    assert_eq!(answers[0]["result"]["supportedVersions"][4], "2026-07-28");
    assert_eq!(answers[1]["result"]["tools"][0]["name"], "execute_code");
}

#[tokio::test]
async fn a_batch_is_answered_with_one_where_the_version_has_them() {
    let opening = |version: &str| {
        json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
            "protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}})
    };
    let ping = |id: u32| json!({"jsonrpc": "2.0", "id": id, "method": "ping"});
    let told = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    let batch = json!([told, ping(2), opening("2025-03-26"), 7, ping(3)]);
    let answers = converse(&[opening("2025-03-26"), batch.clone()]).await;
    let mut codes: Vec<_> = answers[1].as_array().unwrap().iter().map(|it| (&it["id"], &it["error"]["code"])).collect();
    codes.sort_by_key(|(id, _)| id.as_i64());
    let (none, invalid) = (Value::Null, json!(-32600));
    assert_eq!(codes, [(&none, &invalid), (&json!(1), &invalid), (&json!(2), &none), (&json!(3), &none)]);
    let answers = converse(&[opening("2025-06-18"), batch]).await;
    assert_eq!((&answers[1]["id"], &answers[1]["error"]["code"]), (&none, &invalid));
    // Where nothing is asked nothing is answered.
    assert_eq!(converse(&[json!([told, told]), ping(4)]).await.len(), 1);
}

#[tokio::test]
async fn one_request_too_many_is_told_when_to_ask_again() {
    let answers = converse_with(&[json!({"jsonrpc": "2.0", "id": 7, "method": "ping"})], 0).await;
    assert_eq!((&answers[0]["id"], &answers[0]["error"]["code"]), (&json!(7), &json!(-32001)));
    assert_eq!(answers[0]["error"]["data"]["retry_after_ms"], 1000);
}

#[tokio::test]
async fn a_message_that_is_too_long_is_refused_and_the_next_one_heard() {
    let ping = |id: u32, padding: usize| json!({"jsonrpc": "2.0", "id": id, "method": "ping", "params": {"x": "x".repeat(padding)}});
    let longest = rpc::MAX_MESSAGE_BYTES;
    let answers = converse(&[ping(1, 0), ping(2, longest), ping(3, 2 * longest), ping(4, longest / 2)]).await;
    let told: Vec<_> = answers.iter().map(|answer| (&answer["id"], &answer["error"]["code"])).collect();
    let (none, too_long) = (Value::Null, json!(-32600));
    for expected in [(&json!(1), &none), (&none, &too_long), (&json!(4), &none)] {
        assert!(told.contains(&expected), "{expected:?} in {told:?}");
    }
    assert_eq!(told.len(), 4);
}

#[tokio::test]
async fn an_input_that_ends_at_once_is_no_error() {
    assert!(converse(&[]).await.is_empty());
}
