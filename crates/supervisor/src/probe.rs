//! Whether a worker serves MCP: a handshake in either era, then its tools. Nothing of it stays with the worker.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::SocketAddr;

use serde_json::{Value, json};

use super::request::{BUSY, Response, ask};

/// The newest version of each era.
const MODERN: &str = "2026-07-28";
const LEGACY: &str = "2025-11-25";

/// Lists longer than this are not read to their end.
const MOST_PAGES: usize = 64;

/// Whom to ask, and as whom.
pub(crate) struct Probe {
    pub(crate) address: SocketAddr,
    pub(crate) token: Option<String>,
}

/// How much of the list of tools is read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Depth {
    FirstPage,
    AllPages,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// It said that it has too much to do.
    Busy,
    Failed(String),
}

/// How the worker was greeted.
enum Handshake {
    Modern,
    Legacy { session: Option<String> },
}

impl Probe {
    /// Gives the names of the tools.
    pub(crate) async fn run(&self, depth: Depth) -> Result<BTreeSet<String>, Trouble> {
        let handshake = self.greet().await?;
        let listed = self.list(&handshake, depth).await;
        if let Handshake::Legacy { session: Some(session) } = &handshake {
            let headers = self.headers(&format!("Mcp-Session-Id: {session}\r\n"));
            // A conversation that is not ended so is forgotten in time.
            let _ = ask(self.address, "DELETE", &headers, "").await;
        }
        listed
    }

    async fn greet(&self) -> Result<Handshake, Trouble> {
        if self.call(&Handshake::Modern, "server/discover", json!({})).await?.is_ok() {
            return Ok(Handshake::Modern);
        }
        let unknown = Handshake::Legacy { session: None };
        let client = json!({"name": "ringfence-supervisor", "version": env!("CARGO_PKG_VERSION")});
        let params = json!({"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": client});
        let response = self.send(&unknown, "initialize", params).await?;
        let session = response.header("mcp-session-id").map(ToOwned::to_owned);
        result(&response).map_err(|error| Trouble::Failed(format!("initialize was refused: {error}")))?;
        let handshake = Handshake::Legacy { session };
        let initialized = json!({"jsonrpc": "2.0", "method": "notifications/initialized"}).to_string();
        let headers = self.headers(&handshake.headers("notifications/initialized"));
        match ask(self.address, "POST", &headers, &initialized).await {
            Ok(Response { status: BUSY, .. }) => Err(Trouble::Busy),
            Ok(_) => Ok(handshake),
            Err(error) => Err(Trouble::Failed(error.to_string())),
        }
    }

    async fn list(&self, handshake: &Handshake, depth: Depth) -> Result<BTreeSet<String>, Trouble> {
        let mut tools = BTreeSet::new();
        let mut params = json!({});
        for _ in 0..MOST_PAGES {
            let page = self.call(handshake, "tools/list", params).await?;
            let page = page.map_err(|error| Trouble::Failed(format!("tools/list was refused: {error}")))?;
            let Some(listed) = page["tools"].as_array() else {
                return Err(Trouble::Failed("tools/list gave no list".into()));
            };
            tools.extend(listed.iter().filter_map(|tool| tool["name"].as_str()).map(ToOwned::to_owned));
            match page["nextCursor"].as_str() {
                Some(cursor) if depth == Depth::AllPages => params = json!({"cursor": cursor}),
                _ => break,
            }
        }
        Ok(tools)
    }

    /// The inner error is the worker's own refusal.
    async fn call(&self, handshake: &Handshake, method: &str, params: Value) -> Result<Result<Value, String>, Trouble> {
        self.send(handshake, method, params).await.map(|response| result(&response))
    }

    async fn send(&self, handshake: &Handshake, method: &str, mut params: Value) -> Result<Response, Trouble> {
        if let (Handshake::Modern, Some(params)) = (handshake, params.as_object_mut()) {
            let meta = json!({
                "io.modelcontextprotocol/protocolVersion": MODERN,
                "io.modelcontextprotocol/clientCapabilities": {},
            });
            params.insert("_meta".into(), meta);
        }
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string();
        let headers = self.headers(&handshake.headers(method));
        let response = ask(self.address, "POST", &headers, &body).await;
        match response.map_err(|error| Trouble::Failed(format!("{method}: {error}")))? {
            Response { status: BUSY, .. } => Err(Trouble::Busy),
            Response { status: 401, .. } => Err(Trouble::Failed("the worker asks for a token".into())),
            response => Ok(response),
        }
    }

    fn headers(&self, others: &str) -> String {
        let mut headers = others.to_owned();
        if let Some(token) = &self.token {
            let _ = write!(headers, "Authorization: Bearer {token}\r\n");
        }
        headers
    }
}

impl Handshake {
    fn headers(&self, method: &str) -> String {
        match self {
            Self::Modern => format!("MCP-Protocol-Version: {MODERN}\r\nMcp-Method: {method}\r\n"),
            Self::Legacy { session: Some(session) } => {
                format!("MCP-Protocol-Version: {LEGACY}\r\nMcp-Session-Id: {session}\r\n")
            }
            Self::Legacy { session: None } => String::new(),
        }
    }
}

fn result(response: &Response) -> Result<Value, String> {
    let answer: Value = serde_json::from_slice(&response.body).unwrap_or_default();
    match (answer.get("result"), answer["error"]["message"].as_str()) {
        (Some(result), _) => Ok(result.clone()),
        (None, Some(message)) => Err(message.chars().take(300).collect()),
        (None, None) => Err(format!("HTTP status {}", response.status)),
    }
}

#[cfg(test)]
mod tests;
