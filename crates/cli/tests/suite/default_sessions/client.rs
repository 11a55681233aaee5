//! Clients that send the requests of each era, and nothing that would choose a session for them.

use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio as StandardStream};

use ringfence_testkit::{Server, process};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::BINARY;

/// A client over HTTP.
pub(super) struct Http<'a> {
    pub(super) server: &'a Server,
    /// The path and the query.
    pub(super) path: String,
    pub(super) headers: String,
    pub(super) is_modern: bool,
}

impl<'a> Http<'a> {
    /// A client without a handshake.
    pub(super) fn bare(server: &'a Server, path: &str) -> Self {
        Self { server, path: path.into(), headers: String::new(), is_modern: false }
    }

    pub(super) fn modern(server: &'a Server, path: &str) -> Self {
        Self { is_modern: true, ..Self::bare(server, path) }
    }

    /// A client that has sent `initialize`.
    pub(super) fn legacy(server: &'a Server, path: &str) -> Self {
        let client = Self::bare(server, path);
        let params = json!({
            "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"},
        });
        let (head, _) = client.exchange("POST", &request("initialize", &params));
        let id = head.lines().find_map(|line| line.to_lowercase().strip_prefix("mcp-session-id: ").map(str::to_owned));
        let headers = format!("Mcp-Session-Id: {}\r\n", id.unwrap_or_else(|| panic!("no id: {head}")));
        Self { headers, ..client }
    }

    pub(super) fn with_token(self, token: &str) -> Self {
        let headers = format!("{}Authorization: Bearer {token}\r\n", self.headers);
        Self { headers, ..self }
    }

    /// Ends the MCP session of the client.
    pub(super) fn delete(&self) {
        let (head, _) = self.exchange("DELETE", "");
        assert!(head.starts_with("HTTP/1.1 204"), "{head}");
    }

    pub(super) fn call(&self, tool: &str, arguments: &Value) -> Value {
        let (_, body) = self.send(tool, arguments);
        serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}"))
    }

    /// Calls a tool; returns the status line with the headers, and the body.
    pub(super) fn send(&self, tool: &str, arguments: &Value) -> (String, String) {
        let mut params = json!({"name": tool, "arguments": arguments});
        if !self.is_modern {
            return self.exchange("POST", &request("tools/call", &params));
        }
        params["_meta"] = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {},
        });
        let headers = format!(
            "{}MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\nMcp-Name: {tool}\r\n",
            self.headers
        );
        let client = Self { server: self.server, path: self.path.clone(), headers, is_modern: true };
        client.exchange("POST", &request("tools/call", &params))
    }

    fn exchange(&self, method: &str, body: &str) -> (String, String) {
        let Self { server, path, headers, .. } = self;
        let mut stream = TcpStream::connect(&server.address).expect("connect to the server");
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n{headers}\r\n",
            server.address,
            body.len()
        );
        stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes())).expect("send the request");
        let mut response = String::new();
        stream.read_to_string(&mut response).expect("read the response");
        let (head, body) = response.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no response: {response:?}"));
        (head.to_owned(), body.to_owned())
    }
}

fn request(method: &str, params: &Value) -> String {
    json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string()
}

/// A client that has started `ringfence serve --stdio`.
pub(super) struct Stdio {
    pub(super) process: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    /// Removed after the end of the server.
    state: Option<TempDir>,
}

impl Stdio {
    /// Starts a server with a state directory of its own.
    pub(super) fn start(options: &[&str]) -> Self {
        let state = tempfile::tempdir().expect("a directory");
        let mut client = Self::start_in(state.path(), options);
        client.state = Some(state);
        client
    }

    pub(super) fn start_in(state: &Path, options: &[&str]) -> Self {
        let mut process = Self::command(state, options).spawn().expect("start the server");
        let stdout = BufReader::new(process.stdout.take().expect("stdout is piped"));
        let mut client = Self { stdin: process.stdin.take(), stdout, process, state: None };
        let params = json!({
            "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"},
        });
        client.request("initialize", &params);
        client
    }

    pub(super) fn command(state: &Path, options: &[&str]) -> Command {
        let mut command = Command::new(BINARY);
        command.args(["serve", "--stdio"]).args(options).env("RINGFENCE_STATE_DIR", state);
        command.env("RINGFENCE_SESSIONS_TIMEOUT_S", "120").env("RINGFENCE_CODE_TIMEOUT_S", "120");
        command.stdin(StandardStream::piped()).stdout(StandardStream::piped()).stderr(StandardStream::null());
        command
    }

    pub(super) fn call(&mut self, tool: &str, arguments: &Value) -> Value {
        self.request("tools/call", &json!({"name": tool, "arguments": arguments}))
    }

    fn request(&mut self, method: &str, params: &Value) -> Value {
        let stdin = self.stdin.as_mut().expect("the input is open");
        writeln!(stdin, "{}", request(method, params)).expect("send the request");
        loop {
            let mut line = String::new();
            self.stdout.read_line(&mut line).expect("read a line");
            let message: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"));
            if message["id"] == 1 {
                return message;
            }
        }
    }

    /// Ends the input, and waits for the end of the server.
    pub(super) fn end(mut self) {
        self.stdin.take();
        assert_eq!(process::wait(&mut self.process), 0);
    }
}

impl Drop for Stdio {
    fn drop(&mut self) {
        self.stdin.take();
        let _ = self.process.wait();
        self.state.take();
    }
}
