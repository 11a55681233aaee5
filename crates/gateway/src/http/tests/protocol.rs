//! MCP messages of both eras, and paths that are not MCP.

use ringfence_mcp::http::HttpOptions;
use serde_json::{Value, json};

use super::{ACCEPT, JSON, Server, modern, request};

#[tokio::test]
async fn minimal_request_gets_a_json_response() {
    let server = Server::start(HttpOptions::default()).await;
    for accept in [&[JSON][..], &[JSON, "Accept: */*"], &[JSON, "Accept: application/json"]] {
        let response = server.post(accept, &json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"})).await;
        assert_eq!((response.status, response.header("content-type")), (200, Some("application/json")));
        assert_eq!(response.json()["result"]["tools"].as_array().unwrap().len(), 8);
    }
    let call = json!({"name": "execute_code", "arguments": {"code": "1"}});
    insta::assert_snapshot!(server.post(&[JSON], &request("tools/call", call)).await.json());
}

#[tokio::test]
async fn legacy_era() {
    let server = Server::start(HttpOptions::default()).await;
    for version in ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"] {
        let initialize =
            json!({"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
        let response = server.post(&[JSON, ACCEPT], &request("initialize", initialize)).await;
        assert_eq!(response.json()["result"]["protocolVersion"], version);
        let session = format!("Mcp-Session-Id: {}", response.header("mcp-session-id").unwrap());
        let version = format!("MCP-Protocol-Version: {version}");
        let headers = [JSON, ACCEPT, &session, &version];
        let started = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        assert_eq!(server.post(&headers, &started).await.status, 202);
        let cancelled = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 9}});
        assert_eq!(server.post(&headers, &cancelled).await.status, 202);
        let list = server.post(&headers, &request("tools/list", json!({}))).await.json();
        assert_eq!(list["result"]["tools"][0]["name"], "execute_code");
        assert!(list["result"].get("resultType").is_none());
        assert_eq!(server.post(&headers, &request("ping", json!({}))).await.json()["result"], json!({}));
    }
    let future =
        json!({"protocolVersion": "2099-01-01", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
    let response = server.post(&[JSON, ACCEPT], &request("initialize", future)).await;
    insta::assert_json_snapshot!(response.json()["result"]);
}

#[tokio::test]
async fn modern_era() {
    let server = Server::start(HttpOptions::default()).await;
    let version = "MCP-Protocol-Version: 2026-07-28";
    let discover = server
        .post(&[JSON, ACCEPT, version, "Mcp-Method: server/discover"], &request("server/discover", modern(json!({}))))
        .await;
    assert_eq!(discover.header("mcp-session-id"), None);
    insta::assert_json_snapshot!(discover.json());

    let list = server
        .post(&[JSON, ACCEPT, version, "Mcp-Method: tools/list"], &request("tools/list", modern(json!({}))))
        .await
        .json();
    assert_eq!(list["result"]["resultType"], "complete");
    assert_eq!(list["result"]["tools"].as_array().unwrap().len(), 8);

    let call = modern(json!({"name": "execute_code", "arguments": {"code": ""}}));
    let headers = [JSON, ACCEPT, version, "Mcp-Method: tools/call", "Mcp-Name: execute_code"];
    let refusal = server.post(&headers, &request("tools/call", call)).await;
    let refused = refusal.json()["result"].take();
    let shown = (&refused["isError"], &refused["structuredContent"]["error_code"]);
    assert_eq!((refusal.status, shown), (200, (&json!(true), &json!("VALIDATION_ERROR"))));

    let unknown = server.post(&[JSON, ACCEPT, version, "Mcp-Method: x/y"], &request("x/y", modern(json!({})))).await;
    assert_eq!((unknown.status, &unknown.json()["error"]["code"]), (404, &json!(-32601)));
}

#[tokio::test]
async fn invalid_calls_get_a_reason() {
    let server = Server::start(HttpOptions::default()).await;
    let mut bodies = Vec::new();
    for params in [
        json!({"name": "execute_code", "arguments": {"code": 1}}),
        json!({"name": "execute_code", "arguments": {"code": "1", "cwd": "/"}}),
        json!({"name": "execute_code", "arguments": ["1"]}),
        json!({"name": "nothing"}),
        json!({}),
    ] {
        bodies.push(server.post(&[JSON], &request("tools/call", params)).await.body);
    }
    for body in ["{", "[]", "5", r#"{"jsonrpc":"2.0","id":1,"method":7}"#] {
        let response = server.send("POST /mcp", &[JSON], body).await;
        assert_eq!(response.status, 400);
        bodies.push(response.body);
    }
    insta::assert_snapshot!(bodies.join("\n"));
}

#[tokio::test]
async fn ended_mcp_session_cannot_be_used_again() {
    let server = Server::start(HttpOptions::default()).await;
    let id = "Mcp-Session-Id: one";
    assert_eq!(server.post(&[JSON, id], &request("tools/list", json!({}))).await.status, 200);
    assert_eq!(server.send("DELETE /mcp", &[id], "").await.status, 204);
    for _ in 0..2 {
        assert_eq!(server.send("GET /mcp", &[id, ACCEPT], "").await.status, 404);
        assert_eq!(server.post(&[JSON, id], &request("tools/list", json!({}))).await.status, 404);
        assert_eq!(server.send("DELETE /mcp", &[id], "").await.status, 404);
    }
}

#[tokio::test]
async fn requests_that_are_not_mcp_are_refused() {
    let server = Server::start(HttpOptions { max_body_bytes: 1000, ..HttpOptions::default() }).await;
    assert_eq!(server.send("GET /mcp", &[ACCEPT], "").await.status, 405);
    assert_eq!(server.send("DELETE /mcp", &[], "").await.status, 405);
    assert_eq!(server.send("GET /nowhere", &[], "").await.status, 404);
    assert_eq!(server.send("POST /mcp", &["Content-Type: text/plain"], "{}").await.status, 415);
    assert_eq!(server.send("POST /mcp", &[JSON], &" ".repeat(1001)).await.status, 413);
}

#[tokio::test]
async fn status_of_the_server() {
    let server = Server::start(HttpOptions::default()).await;
    let about = server.send("GET /", &[], "").await.json();
    assert_eq!(about["version"], env!("CARGO_PKG_VERSION"));
    insta::assert_snapshot!(about["protocol_versions"]);
    insta::assert_snapshot!(about["backend"], @r#"{"state":"down","reason":"user namespaces are off"}"#);
    let health = server.send("GET /health", &[], "").await;
    assert_eq!(health.status, 503);
    insta::assert_snapshot!(health.json(), @r#"{"status":"down","reason":"user namespaces are off"}"#);
}

#[tokio::test]
async fn batch_gets_a_batch_response_if_the_version_has_batches() {
    let server = Server::start(HttpOptions::default()).await;
    let call = |id: u32, method: &str| json!({"jsonrpc": "2.0", "id": id, "method": method});
    let initialized = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    let batch = json!([initialized, call(1, "ping"), 7, call(2, "initialize"), call(3, "tools/list")]);
    for headers in [vec![JSON], vec![JSON, ACCEPT, "MCP-Protocol-Version: 2025-03-26"]] {
        let responses = server.post(&headers, &batch).await.json();
        let shown = |response: &Value| (response["id"].as_u64(), response["error"]["code"].as_i64());
        let shown: Vec<_> = responses.as_array().unwrap().iter().map(shown).collect();
        assert_eq!(shown, [(None, Some(-32600)), (Some(1), None), (Some(2), Some(-32600)), (Some(3), None)]);
    }
    assert_eq!(server.post(&[JSON], &json!([initialized, initialized])).await.status, 202);
    let cancelled = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}});
    let partly_cancelled =
        server.post(&[JSON, "Mcp-Session-Id: one"], &json!([call(1, "ping"), call(2, "ping"), cancelled])).await;
    assert_eq!(partly_cancelled.json().as_array().unwrap().len(), 1, "a cancelled request gets no response");
    for version in ["2025-06-18", "2026-07-28"] {
        let refused = server.post(&[JSON, &format!("MCP-Protocol-Version: {version}")], &batch).await;
        assert_eq!((refused.status, &refused.json()["error"]["code"]), (400, &json!(-32600)));
    }
    let among = json!([{"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": modern(json!({}))}]);
    assert!(server.post(&[JSON], &among).await.json()[0]["error"].is_object());
}
