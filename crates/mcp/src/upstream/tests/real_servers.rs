//! Published servers: server-everything over three transports, and a Python server of the modern era. `scripts/test`
//! downloads them.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use ringfence_testkit::{download_cache, skip};
use serde_json::json;
use tokio::process::{Child, Command};
use tokio::sync::mpsc;

use super::http_servers::{LONG, call, connect, plain_target};
use crate::upstream::{Incoming, OutgoingCall, Target, Upstream};

/// Returns the program of server-everything in the package cache. Records a skip if it is missing.
fn program(test: &str) -> Option<PathBuf> {
    let cache = download_cache(test)?.join("npm/_npx");
    let entries = std::fs::read_dir(cache).into_iter().flatten().flatten();
    let mut programs =
        entries.map(|entry| entry.path().join("node_modules/@modelcontextprotocol/server-everything/dist/index.js"));
    let program = programs.find(|program| program.exists());
    if program.is_none() {
        skip(test, "server-everything is not in the package cache");
    }
    program
}

fn start(program: &PathBuf, mode: &str, port: u16) -> Child {
    let mut command = Command::new("node");
    command.arg(program).arg(mode).env("PORT", port.to_string()).kill_on_drop(true);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Connects as soon as the server listens.
async fn connect_when_ready(target: impl Fn() -> Target) -> (Upstream, mpsc::Receiver<Incoming>) {
    for _ in 0..300 {
        if let (Ok(upstream), incoming) = connect(target()).await {
            return (upstream, incoming);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("the server does not listen")
}

async fn assert_works(upstream: &Upstream) {
    let tools = upstream.list("tools/list", "tools").await.unwrap();
    assert!(tools.iter().any(|tool| tool["name"] == "echo"), "{tools:?}");
    let echo = call("tools/call", json!({"name": "echo", "arguments": {"message": "hello"}}));
    assert_eq!(upstream.call(echo).await.unwrap()["content"][0]["text"], "Echo: hello");
    let (related, mut messages) = mpsc::channel(64);
    let long = json!({"name": "trigger-long-running-operation", "arguments": {"duration": 1, "steps": 2},
        "_meta": {"progressToken": "mine"}});
    let result = upstream.call(OutgoingCall { related: Some(related), ..call("tools/call", long) }).await.unwrap();
    assert!(result.get("isError").is_none(), "{result}");
    let mut progress = 0;
    while let Some(incoming) = messages.recv().await {
        let Incoming::Notification { method, params } = incoming else { continue };
        if method == "notifications/progress" {
            assert_eq!(params.unwrap()["progressToken"], "mine");
            progress += 1;
        }
    }
    assert_eq!(progress, 2);
    assert!(upstream.ping(LONG).await);
}

#[tokio::test]
async fn server_everything_over_stdio() {
    let Some(program) = program("upstream::server_everything_over_stdio") else { return };
    let mut child = start(&program, "stdio", 0);
    let streams = (child.stdout.take().unwrap(), child.stdin.take().unwrap());
    let (upstream, _incoming) = connect(Target::Stdio(Box::new(streams.0), Box::new(streams.1))).await;
    assert_works(&upstream.unwrap()).await;
    // The server exits when its input is closed.
    tokio::time::timeout(LONG, child.wait()).await.unwrap().unwrap();
}

#[tokio::test]
async fn server_everything_over_streamable_http() {
    let Some(program) = program("upstream::server_everything_over_streamable_http") else { return };
    let port = free_port();
    let _child = start(&program, "streamableHttp", port);
    let remote = plain_target(format!("http://127.0.0.1:{port}/mcp"));
    let (upstream, _incoming) = connect_when_ready(|| Target::Remote(remote.clone())).await;
    assert_works(&upstream).await;
    upstream.close().await;
}

#[tokio::test]
async fn server_everything_over_sse() {
    let Some(program) = program("upstream::server_everything_over_sse") else { return };
    let port = free_port();
    let _child = start(&program, "sse", port);
    let remote = plain_target(format!("http://127.0.0.1:{port}/sse"));
    let (upstream, _incoming) = connect_when_ready(|| Target::Remote(remote.clone())).await;
    assert_works(&upstream).await;
    upstream.close().await;
}

/// A server that uses the newest Python package of MCP.
const MODERN: &str = r#"
import sys
from mcp.server.mcpserver import MCPServer
server = MCPServer("modern")
@server.tool()
def add(a: int, b: int) -> int:
    return a + b
if sys.argv[1] == "stdio":
    server.run("stdio")
else:
    server.run("streamable-http", port=int(sys.argv[1]))
"#;

fn start_modern(test: &str, mode: &str) -> Option<Child> {
    let python = download_cache(test)?.join("python-newest/bin/python");
    let mut command = Command::new(python);
    command.arg("-c").arg(MODERN).arg(mode).kill_on_drop(true);
    Some(command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap())
}

async fn assert_modern(upstream: &Upstream) {
    assert!(upstream.era().is_modern(), "{:?}", upstream.era());
    let tools = upstream.list("tools/list", "tools").await.unwrap();
    assert_eq!(tools[0]["name"], "add");
    let add = call("tools/call", json!({"name": "add", "arguments": {"a": 2, "b": 3}}));
    assert_eq!(upstream.call(add).await.unwrap()["structuredContent"], json!({"result": 5}));
    assert!(upstream.ping(LONG).await);
}

#[tokio::test]
async fn modern_python_server_over_stdio() {
    let Some(mut child) = start_modern("upstream::modern_python_server_over_stdio", "stdio") else { return };
    let streams = (child.stdout.take().unwrap(), child.stdin.take().unwrap());
    let (upstream, _incoming) = connect(Target::Stdio(Box::new(streams.0), Box::new(streams.1))).await;
    assert_modern(&upstream.unwrap()).await;
    tokio::time::timeout(LONG, child.wait()).await.unwrap().unwrap();
}

#[tokio::test]
async fn modern_python_server_over_http() {
    let port = free_port();
    let test = "upstream::modern_python_server_over_http";
    let Some(_child) = start_modern(test, &port.to_string()) else { return };
    let remote = plain_target(format!("http://127.0.0.1:{port}/mcp"));
    let (upstream, _incoming) = connect_when_ready(|| Target::Http(remote.clone())).await;
    assert_modern(&upstream).await;
    upstream.close().await;
}
