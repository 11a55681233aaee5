//! The gateway over stdio.

use ringfence_mcp::{rpc, stdio};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;

use crate::Gateway;

/// Sends messages and returns the responses.
async fn exchange(messages: &[Value]) -> Vec<Value> {
    exchange_with(messages, 16).await
}

async fn exchange_with(messages: &[Value], max_concurrent: usize) -> Vec<Value> {
    let input = messages.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n") + "\n";
    let (output, mut responses) = tokio::io::duplex(1 << 20);
    stdio::serve(Gateway::without_backend("none here"), None, max_concurrent, std::io::Cursor::new(input), output)
        .await
        .unwrap();
    let mut text = String::new();
    responses.read_to_string(&mut text).await.unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test]
async fn legacy_client_initializes_first() {
    let responses = exchange(&[
        json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
            "protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}}),
        json!({"jsonrpc": "2.0", "method": "notifications/initialized"}),
        json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "get_volume_path"}}),
    ])
    .await;
    assert_eq!(responses[0]["result"]["protocolVersion"], "2024-11-05");
    insta::assert_snapshot!(responses[1]["result"]);
}

#[tokio::test]
async fn modern_client_needs_no_initialize() {
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let responses = exchange(&[
        json!({"jsonrpc": "2.0", "id": 1, "method": "server/discover", "params": {"_meta": meta}}),
        json!({"jsonrpc": "2.0", "id": 2, "method": "tools/list", "params": {"_meta": meta}}),
    ])
    .await;
    assert_eq!(responses[0]["result"]["supportedVersions"][4], "2026-07-28");
    assert_eq!(responses[1]["result"]["tools"][0]["name"], "execute_code");
}

#[tokio::test]
async fn batch_gets_a_batch_response_if_the_version_has_batches() {
    let initialize = |version: &str| {
        json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
            "protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}})
    };
    let ping = |id: u32| json!({"jsonrpc": "2.0", "id": id, "method": "ping"});
    let notification = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    let batch = json!([notification, ping(2), initialize("2025-03-26"), 7, ping(3)]);
    let responses = exchange(&[initialize("2025-03-26"), batch.clone()]).await;
    let mut codes: Vec<_> =
        responses[1].as_array().unwrap().iter().map(|response| (&response["id"], &response["error"]["code"])).collect();
    codes.sort_by_key(|(id, _)| id.as_i64());
    let (none, invalid) = (Value::Null, json!(-32600));
    assert_eq!(codes, [(&none, &invalid), (&json!(1), &invalid), (&json!(2), &none), (&json!(3), &none)]);
    let responses = exchange(&[initialize("2025-06-18"), batch]).await;
    assert_eq!((&responses[1]["id"], &responses[1]["error"]["code"]), (&none, &invalid));
    // Notifications get no response.
    assert_eq!(exchange(&[json!([notification, notification]), ping(4)]).await.len(), 1);
}

#[tokio::test]
async fn request_over_the_limit_gets_a_retry_time() {
    let responses = exchange_with(&[json!({"jsonrpc": "2.0", "id": 7, "method": "ping"})], 0).await;
    assert_eq!((&responses[0]["id"], &responses[0]["error"]["code"]), (&json!(7), &json!(-32001)));
    assert_eq!(responses[0]["error"]["data"]["retry_after_ms"], 1000);
}

#[tokio::test]
async fn too_long_message_is_refused_and_the_next_one_handled() {
    let ping = |id: u32, padding: usize| json!({"jsonrpc": "2.0", "id": id, "method": "ping", "params": {"x": "x".repeat(padding)}});
    let max = rpc::MAX_MESSAGE_BYTES;
    let responses = exchange(&[ping(1, 0), ping(2, max), ping(3, 2 * max), ping(4, max / 2)]).await;
    let outcomes: Vec<_> = responses.iter().map(|response| (&response["id"], &response["error"]["code"])).collect();
    let (none, too_long) = (Value::Null, json!(-32600));
    for expected in [(&json!(1), &none), (&none, &too_long), (&json!(4), &none)] {
        assert!(outcomes.contains(&expected), "{expected:?} in {outcomes:?}");
    }
    assert_eq!(outcomes.len(), 4);
}

#[tokio::test]
async fn empty_input_is_not_an_error() {
    assert!(exchange(&[]).await.is_empty());
}
