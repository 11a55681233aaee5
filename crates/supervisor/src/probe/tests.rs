use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::*;

/// Answers as it is told, and remembers what it was asked.
async fn peer(answer: fn(&str, &Value) -> (u16, String)) -> (Probe, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&asked);
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
            let (status, body) = answer(&head, &message);
            let length = body.len();
            let answer = format!("HTTP/1.0 {status} X\r\nMcp-Session-Id: s1\r\nContent-Length: {length}\r\n\r\n{body}");
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    (Probe { address, token: Some("secret".into()) }, asked)
}

fn answered(result: &Value) -> (u16, String) {
    (200, json!({"jsonrpc": "2.0", "id": 1, "result": result}).to_string())
}

fn names(tools: &[&str]) -> BTreeSet<String> {
    tools.iter().map(ToString::to_string).collect()
}

#[tokio::test]
async fn a_modern_worker_is_asked_without_leaving_a_trace() {
    let (probe, asked) = peer(|head, message| {
        assert!(head.contains("Authorization: Bearer secret") && head.contains("MCP-Protocol-Version: 2026-07-28"));
        assert!(head.contains(&format!("Mcp-Method: {}", message["method"].as_str().unwrap())));
        assert_eq!(message["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"], MODERN);
        match message["params"]["cursor"].as_str() {
            _ if message["method"] == "server/discover" => answered(&json!({})),
            None => answered(&json!({"tools": [{"name": "a"}], "nextCursor": "2"})),
            Some(_) => answered(&json!({"tools": [{"name": "b"}]})),
        }
    })
    .await;
    assert_eq!(probe.run(Depth::AllPages).await, Ok(names(&["a", "b"])));
    assert_eq!(probe.run(Depth::FirstPage).await, Ok(names(&["a"])));
    let asked = asked.lock().unwrap();
    assert_eq!(
        *asked,
        ["POST server/discover", "POST tools/list", "POST tools/list", "POST server/discover", "POST tools/list"]
    );
}

#[tokio::test]
async fn a_legacy_worker_is_greeted_and_told_that_it_is_over() {
    let (probe, asked) = peer(|head, message| match message["method"].as_str() {
        Some("server/discover") => (404, json!({"error": {"code": -32601, "message": "no"}}).to_string()),
        Some("initialize") => answered(&json!({"protocolVersion": LEGACY})),
        Some("notifications/initialized") => (202, String::new()),
        Some(_) => {
            assert!(head.contains("Mcp-Session-Id: s1"));
            answered(&json!({"tools": [{"name": "a"}]}))
        }
        None => (204, String::new()),
    })
    .await;
    assert_eq!(probe.run(Depth::AllPages).await, Ok(names(&["a"])));
    let expected = ["server/discover", "initialize", "notifications/initialized", "tools/list"];
    let mut expected: Vec<String> = expected.iter().map(|method| format!("POST {method}")).collect();
    expected.push("DELETE -".into());
    assert_eq!(*asked.lock().unwrap(), expected);
}

#[tokio::test]
async fn too_much_to_do_is_no_failure_but_nonsense_is() {
    let (busy, _) = peer(|_, _| (503, "{}".into())).await;
    assert_eq!(busy.run(Depth::FirstPage).await, Err(Trouble::Busy));
    let (guarded, _) = peer(|_, _| (401, "{}".into())).await;
    let why = guarded.run(Depth::FirstPage).await.unwrap_err();
    assert_eq!(why, Trouble::Failed("the worker asks for a token".into()));
    for nonsense in [|_: &str, _: &Value| (200, "[]".to_owned()), |_: &str, _: &Value| answered(&json!({"tools": 1}))] {
        let (probe, _) = peer(nonsense).await;
        assert!(matches!(probe.run(Depth::FirstPage).await, Err(Trouble::Failed(_))));
    }
}

/// Says something to whoever connects, once that has asked, reads nothing of it, and hangs up: what was sent to it is
/// answered with a reset.
async fn hurried(says: &'static str) -> Probe {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            stream.readable().await.unwrap();
            stream.write_all(says.as_bytes()).await.unwrap();
        }
    });
    Probe { address, token: None }
}

#[tokio::test]
async fn one_that_is_too_busy_to_read_the_question_is_busy_but_one_that_says_nothing_fails() {
    let busy = hurried("HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n").await;
    assert_eq!(busy.run(Depth::FirstPage).await, Err(Trouble::Busy));
    let silent = hurried("").await;
    assert!(matches!(silent.run(Depth::FirstPage).await, Err(Trouble::Failed(_))));
}
