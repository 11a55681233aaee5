//! Calls tools of an MCP server over one persistent HTTP connection.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use crate::http::Connection;

/// rmcp requires both types of every client.
const ACCEPT: &str = "Accept: application/json, text/event-stream\r\n";

/// For long calls, which would otherwise be answered with an event stream.
const ACCEPT_JSON: &str = "Accept: application/json\r\n";

pub(crate) struct Client(Connection);

/// The result of a tool call, and the time until it was received.
pub(crate) struct CallResult {
    pub(crate) time: Duration,
    pub(crate) result: Value,
}

impl CallResult {
    pub(crate) fn session_id(&self) -> Result<String> {
        let id = self.result["structuredContent"]["session_id"].as_str();
        Ok(id.context("the result has no session_id")?.to_owned())
    }
}

impl Client {
    pub(crate) fn connect(address: &str) -> Result<Self> {
        Connection::open(address).map(Self)
    }

    /// Checks that the server is ready.
    pub(crate) fn health(&mut self) -> Result<()> {
        match self.0.get("/health")?.status {
            200 => Ok(()),
            status => bail!("/health returned {status}"),
        }
    }

    pub(crate) fn call(&mut self, tool: &str, arguments: &Value) -> Result<CallResult> {
        self.call_accepting(ACCEPT, tool, arguments)
    }

    pub(crate) fn call_without_stream(&mut self, tool: &str, arguments: &Value) -> Result<CallResult> {
        self.call_accepting(ACCEPT_JSON, tool, arguments)
    }

    /// Creates a session by executing code without a session id.
    pub(crate) fn create_session(&mut self, template: &str, code: &str) -> Result<CallResult> {
        self.call("execute_code", &json!({"template": template, "code": code}))
    }

    pub(crate) fn stop_session(&mut self, session_id: &str) -> Result<()> {
        self.call("stop_session", &json!({"session_id": session_id})).map(drop)
    }

    fn call_accepting(&mut self, accept: &str, tool: &str, arguments: &Value) -> Result<CallResult> {
        let params = json!({"name": tool, "arguments": arguments});
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).to_string();
        let start = Instant::now();
        let response = self.0.post("/mcp", accept, &body)?;
        let time = start.elapsed();
        let status = response.status;
        let mut message: Value = serde_json::from_slice(&response.body)
            .with_context(|| format!("{tool} returned status {status} and no JSON"))?;
        let result = message["result"].take();
        if status != 200 || result.is_null() || result["isError"] == true {
            bail!("{tool} failed ({status}): {}", if result.is_null() { &message["error"] } else { &result });
        }
        Ok(CallResult { time, result })
    }
}
