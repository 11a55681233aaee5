//! Probes whether a worker serves MCP: a handshake in either era, then its list of tools. No state remains in the worker.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::SocketAddr;

use serde_json::{Value, json};

use super::http_request::{BUSY, Response, send_request};

/// The newest version of each era.
const MODERN: &str = "2026-07-28";
const LEGACY: &str = "2025-11-25";

/// Maximum number of pages that are read.
const MAX_PAGES: usize = 64;

/// The address and the token for probes.
pub(crate) struct Probe {
    pub(crate) address: SocketAddr,
    pub(crate) token: Option<String>,
}

/// The part of the list of tools that is read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Depth {
    FirstPage,
    AllPages,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ProbeError {
    /// The worker responded that it is overloaded.
    Busy,
    Failed(String),
}

/// The era of a worker, and its session if it has one.
enum Handshake {
    Modern,
    Legacy { session: Option<String> },
}

impl Probe {
    /// Returns the names of the tools.
    pub(crate) async fn run(&self, depth: Depth) -> Result<BTreeSet<String>, ProbeError> {
        let handshake = self.handshake().await?;
        let listed = self.list_tools(&handshake, depth).await;
        if let Handshake::Legacy { session: Some(session) } = &handshake {
            let headers = self.headers(&format!("Mcp-Session-Id: {session}\r\n"));
            // If this fails, the session of the worker expires.
            let _ = send_request(self.address, "DELETE", &headers, "").await;
        }
        listed
    }

    async fn handshake(&self) -> Result<Handshake, ProbeError> {
        if self.call(&Handshake::Modern, "server/discover", json!({})).await?.is_ok() {
            return Ok(Handshake::Modern);
        }
        let no_session = Handshake::Legacy { session: None };
        let client = json!({"name": "ringfence-supervisor", "version": env!("CARGO_PKG_VERSION")});
        let params = json!({"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": client});
        let response = self.send(&no_session, "initialize", params).await?;
        let session = response.header("mcp-session-id").map(ToOwned::to_owned);
        result(&response).map_err(|error| ProbeError::Failed(format!("initialize failed: {error}")))?;
        let handshake = Handshake::Legacy { session };
        let initialized = json!({"jsonrpc": "2.0", "method": "notifications/initialized"}).to_string();
        let headers = self.headers(&handshake.headers("notifications/initialized"));
        match send_request(self.address, "POST", &headers, &initialized).await {
            Ok(Response { status: BUSY, .. }) => Err(ProbeError::Busy),
            Ok(_) => Ok(handshake),
            Err(error) => Err(ProbeError::Failed(error.to_string())),
        }
    }

    async fn list_tools(&self, handshake: &Handshake, depth: Depth) -> Result<BTreeSet<String>, ProbeError> {
        let mut tools = BTreeSet::new();
        let mut params = json!({});
        for _ in 0..MAX_PAGES {
            let page = self.call(handshake, "tools/list", params).await?;
            let page = page.map_err(|error| ProbeError::Failed(format!("tools/list failed: {error}")))?;
            let Some(listed) = page["tools"].as_array() else {
                return Err(ProbeError::Failed("tools/list returned no list".into()));
            };
            tools.extend(listed.iter().filter_map(|tool| tool["name"].as_str()).map(ToOwned::to_owned));
            match page["nextCursor"].as_str() {
                Some(cursor) if depth == Depth::AllPages => params = json!({"cursor": cursor}),
                _ => break,
            }
        }
        Ok(tools)
    }

    /// The inner error is the error that the worker returned.
    async fn call(
        &self,
        handshake: &Handshake,
        method: &str,
        params: Value,
    ) -> Result<Result<Value, String>, ProbeError> {
        self.send(handshake, method, params).await.map(|response| result(&response))
    }

    async fn send(&self, handshake: &Handshake, method: &str, mut params: Value) -> Result<Response, ProbeError> {
        if let (Handshake::Modern, Some(params)) = (handshake, params.as_object_mut()) {
            let meta = json!({
                "io.modelcontextprotocol/protocolVersion": MODERN,
                "io.modelcontextprotocol/clientCapabilities": {},
            });
            params.insert("_meta".into(), meta);
        }
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string();
        let headers = self.headers(&handshake.headers(method));
        let response = send_request(self.address, "POST", &headers, &body).await;
        match response.map_err(|error| ProbeError::Failed(format!("{method}: {error}")))? {
            Response { status: BUSY, .. } => Err(ProbeError::Busy),
            Response { status: 401, .. } => Err(ProbeError::Failed("the worker requires a token".into())),
            response => Ok(response),
        }
    }

    fn headers(&self, headers: &str) -> String {
        let mut headers = headers.to_owned();
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
    let message: Value = serde_json::from_slice(&response.body).unwrap_or_default();
    match (message.get("result"), message["error"]["message"].as_str()) {
        (Some(result), _) => Ok(result.clone()),
        (None, Some(message)) => Err(message.chars().take(300).collect()),
        (None, None) => Err(format!("HTTP status {}", response.status)),
    }
}

#[cfg(test)]
mod tests;
