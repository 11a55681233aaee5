//! Calls tools over one HTTP connection, as a client that keeps it would.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use crate::http::{Connection, Request};

/// Longer than any call may take.
const PATIENCE: Duration = Duration::from_secs(180);

/// What rmcp asks of every client.
const ACCEPT: &str = "Accept: application/json, text/event-stream\r\n";

/// For calls so long that they would be answered by a stream.
const ACCEPT_JSON: &str = "Accept: application/json\r\n";

pub(super) struct Client {
    connection: Connection<TcpStream>,
    host: String,
}

/// What came back, and how long it took.
pub(super) struct Answered {
    pub(super) time: Duration,
    pub(super) result: Value,
}

impl Answered {
    pub(super) fn session_id(&self) -> Result<String> {
        let id = self.result["structuredContent"]["session_id"].as_str();
        Ok(id.context("the answer names no session")?.to_owned())
    }
}

impl Client {
    pub(super) fn connect(address: &str) -> Result<Self> {
        let stream = TcpStream::connect(address).context("the server cannot be reached")?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self { connection: Connection::new(stream), host: address.to_owned() })
    }

    /// Asks whether the server is ready.
    pub(super) fn health(&mut self) -> Result<()> {
        let request = Request { method: "GET", path: "/health", host: &self.host, head: "", body: "" };
        match self.connection.ask(&request)? {
            (200, _) => Ok(()),
            (status, _) => bail!("/health answers {status}"),
        }
    }

    pub(super) fn call(&mut self, tool: &str, arguments: &Value) -> Result<Answered> {
        self.call_accepting(ACCEPT, tool, arguments)
    }

    pub(super) fn call_for_long(&mut self, tool: &str, arguments: &Value) -> Result<Answered> {
        self.call_accepting(ACCEPT_JSON, tool, arguments)
    }

    /// Makes a session by running something in it.
    pub(super) fn create(&mut self, template: &str, code: &str) -> Result<Answered> {
        self.call("execute_code", &json!({"template": template, "code": code}))
    }

    pub(super) fn stop(&mut self, session_id: &str) -> Result<()> {
        self.call("stop_session", &json!({"session_id": session_id})).map(drop)
    }

    fn call_accepting(&mut self, head: &str, tool: &str, arguments: &Value) -> Result<Answered> {
        let params = json!({"name": tool, "arguments": arguments});
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).to_string();
        let request = Request { method: "POST", path: "/mcp", host: &self.host, head, body: &body };
        let start = Instant::now();
        let (status, answer) = self.connection.ask(&request)?;
        let time = start.elapsed();
        let mut answer: Value =
            serde_json::from_slice(&answer).with_context(|| format!("{tool} was answered with {status}"))?;
        let result = answer["result"].take();
        if status != 200 || result.is_null() || result["isError"] == true {
            bail!("{tool} failed ({status}): {}", if result.is_null() { &answer["error"] } else { &result });
        }
        Ok(Answered { time, result })
    }
}
