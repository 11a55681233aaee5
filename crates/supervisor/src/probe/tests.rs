use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::*;

/// Starts a server that responds with `respond` and records the requests.
async fn server(respond: fn(&str, &Value) -> (u16, String)) -> (Probe, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let requests = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&requests);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = Vec::new();
            let (head, body) = loop {
                stream.read_buf(&mut request).await.unwrap();
                let text = String::from_utf8_lossy(&request).into_owned();
                let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
                let length = head.split("Content-Length: ").nth(1).unwrap().split("\r\n").next().unwrap();
                if body.len() == length.parse::<usize>().unwrap() {
                    break (head.to_owned(), body.to_owned());
                }
            };
            let message: Value = serde_json::from_str(&body).unwrap_or_default();
            let verb = head.split(' ').next().unwrap();
            log.lock().unwrap().push(format!("{verb} {}", message["method"].as_str().unwrap_or("-")));
            let (status, body) = respond(&head, &message);
            let length = body.len();
            let response =
                format!("HTTP/1.0 {status} X\r\nMcp-Session-Id: s1\r\nContent-Length: {length}\r\n\r\n{body}");
            stream.write_all(response.as_bytes()).await.unwrap();
        }
    });
    (Probe { address, token: Some("secret".into()) }, requests)
}

fn result_of(result: &Value) -> (u16, String) {
    (200, json!({"jsonrpc": "2.0", "id": 1, "result": result}).to_string())
}

fn names(tools: &[&str]) -> BTreeSet<String> {
    tools.iter().map(ToString::to_string).collect()
}

#[tokio::test]
async fn modern_worker_is_probed_without_session() {
    let (probe, requests) = server(|head, message| {
        assert!(head.contains("Authorization: Bearer secret") && head.contains("MCP-Protocol-Version: 2026-07-28"));
        assert!(head.contains(&format!("Mcp-Method: {}", message["method"].as_str().unwrap())));
        assert_eq!(message["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"], MODERN);
        match message["params"]["cursor"].as_str() {
            _ if message["method"] == "server/discover" => result_of(&json!({})),
            None => result_of(&json!({"tools": [{"name": "a"}], "nextCursor": "2"})),
            Some(_) => result_of(&json!({"tools": [{"name": "b"}]})),
        }
    })
    .await;
    assert_eq!(probe.run(Depth::AllPages).await, Ok(names(&["a", "b"])));
    assert_eq!(probe.run(Depth::FirstPage).await, Ok(names(&["a"])));
    let requests = requests.lock().unwrap();
    assert_eq!(
        *requests,
        ["POST server/discover", "POST tools/list", "POST tools/list", "POST server/discover", "POST tools/list"]
    );
}

#[tokio::test]
async fn session_of_legacy_worker_is_deleted() {
    let (probe, requests) = server(|head, message| match message["method"].as_str() {
        Some("server/discover") => (404, json!({"error": {"code": -32601, "message": "no"}}).to_string()),
        Some("initialize") => result_of(&json!({"protocolVersion": LEGACY})),
        Some("notifications/initialized") => (202, String::new()),
        Some(_) => {
            assert!(head.contains("Mcp-Session-Id: s1"));
            result_of(&json!({"tools": [{"name": "a"}]}))
        }
        None => (204, String::new()),
    })
    .await;
    assert_eq!(probe.run(Depth::AllPages).await, Ok(names(&["a"])));
    let expected = ["server/discover", "initialize", "notifications/initialized", "tools/list"];
    let mut expected: Vec<String> = expected.iter().map(|method| format!("POST {method}")).collect();
    expected.push("DELETE -".into());
    assert_eq!(*requests.lock().unwrap(), expected);
}

#[tokio::test]
async fn overload_is_not_a_failure_but_an_invalid_response_is() {
    let (busy, _) = server(|_, _| (503, "{}".into())).await;
    assert_eq!(busy.run(Depth::FirstPage).await, Err(ProbeError::Busy));
    let (protected, _) = server(|_, _| (401, "{}".into())).await;
    let error = protected.run(Depth::FirstPage).await.unwrap_err();
    assert_eq!(error, ProbeError::Failed("the worker requires a token".into()));
    for nonsense in [|_: &str, _: &Value| (200, "[]".to_owned()), |_: &str, _: &Value| result_of(&json!({"tools": 1}))]
    {
        let (probe, _) = server(nonsense).await;
        assert!(matches!(probe.run(Depth::FirstPage).await, Err(ProbeError::Failed(_))));
    }
}

/// Starts a server that responds without reading the request and then closes the connection, which resets it.
async fn respond_without_reading(response: &'static str) -> Probe {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            stream.readable().await.unwrap();
            stream.write_all(response.as_bytes()).await.unwrap();
        }
    });
    Probe { address, token: None }
}

#[tokio::test]
async fn worker_that_responds_503_without_reading_is_busy_and_a_silent_one_fails() {
    let busy =
        respond_without_reading("HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n")
            .await;
    assert_eq!(busy.run(Depth::FirstPage).await, Err(ProbeError::Busy));
    let silent = respond_without_reading("").await;
    assert!(matches!(silent.run(Depth::FirstPage).await, Err(ProbeError::Failed(_))));
}
