//! Tests over real HTTP on loopback, without a sandbox backend.

mod authentication;
mod limits;
mod protocol;
mod shutdown;

use std::net::SocketAddr;

use ringfence_mcp::http::HttpOptions;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use super::{ServeError, serve_http};
use crate::Gateway;
use crate::authorize::{AuthenticationOptions, Token};

const JSON: &str = "Content-Type: application/json";
const ACCEPT: &str = "Accept: application/json, text/event-stream";

/// The tokens of [`two_tokens`].
const ONE: &str = "Authorization: Bearer the-secret-of-one";
const OTHER: &str = "Authorization: Bearer the-secret-of-other";

struct Server {
    address: SocketAddr,
    shutdown: CancellationToken,
    task: tokio::task::JoinHandle<Result<(), ServeError>>,
}

struct HttpResponse {
    status: u16,
    head: String,
    body: String,
}

impl HttpResponse {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}\n\n{}", self.head, self.body))
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().filter_map(|line| line.split_once(": ")).find(|(key, _)| *key == name).map(|(_, value)| value)
    }
}

impl Server {
    async fn start(options: HttpOptions) -> Self {
        Self::with_tokens(Vec::new(), options).await
    }

    async fn with_tokens(tokens: Vec<Token>, options: HttpOptions) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shutdown = CancellationToken::new();
        let gateway = Gateway::without_backend("user namespaces are off");
        let authentication = AuthenticationOptions { tokens, ..AuthenticationOptions::default() };
        let task = tokio::spawn(serve_http(listener, gateway, authentication, options, shutdown.clone()));
        Self { address, shutdown, task }
    }

    /// Sends a request, whose `target` is a method and a path.
    async fn send(&self, target: &str, headers: &[&str], body: &str) -> HttpResponse {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let host = format!("Host: {}", self.address);
        let has_host = headers.iter().any(|header| header.starts_with("Host:"));
        let length = format!("Content-Length: {}", body.len());
        let mut lines = vec!["Connection: close", &length];
        lines.extend(headers);
        lines.extend((!has_host).then_some(host.as_str()));
        let head = format!("{target} HTTP/1.1\r\n{}\r\n", lines.join("\r\n"));
        stream.write_all(format!("{head}\r\n{body}").as_bytes()).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        HttpResponse { status: head[9..12].parse().unwrap(), head: head.into(), body: body.into() }
    }

    async fn post(&self, headers: &[&str], message: &Value) -> HttpResponse {
        self.send("POST /mcp", headers, &message.to_string()).await
    }
}

fn request(method: &str, mut params: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params.take()})
}

/// Adds the metadata of a request of the modern era.
fn modern(mut params: Value) -> Value {
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    params
}

fn two_tokens() -> Vec<Token> {
    ["one", "other"].map(|name| Token { principal: name.into(), secret: format!("the-secret-of-{name}") }).into()
}
