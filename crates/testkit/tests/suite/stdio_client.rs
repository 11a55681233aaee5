//! A client of an MCP server on standard streams. The server is killed when the client is dropped.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

use serde_json::{Value, json};

pub(crate) struct StdioClient {
    pub(crate) server: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl StdioClient {
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut server = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("start the server");
        let output = BufReader::new(server.stdout.take().expect("stdout is piped"));
        Self { input: server.stdin.take(), server, output }
    }

    /// Starts a server and performs the handshake of the older era.
    pub(crate) fn connect(command: &mut Command) -> Self {
        let mut client = Self::start(command);
        let info = json!({"name": "test", "version": "1"});
        let params = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info});
        client.send(1, "initialize", &params);
        while client.read_line().is_some_and(|line| !line.contains("serverInfo")) {}
        client.write(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        client
    }

    fn write(&mut self, message: &Value) {
        let input = self.input.as_mut().expect("the input is open");
        writeln!(input, "{message}").expect("write to the server");
    }

    pub(crate) fn send(&mut self, id: u64, method: &str, params: &Value) {
        self.write(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
    }

    /// Returns the next line of the server, or `None` at the end of its output.
    pub(crate) fn read_line(&mut self) -> Option<String> {
        let mut line = Vec::new();
        let length = self.output.read_until(b'\n', &mut line).expect("read from the server");
        (length > 0).then(|| String::from_utf8_lossy(&line).into_owned())
    }

    pub(crate) fn receive(&mut self) -> Value {
        let line = self.read_line().expect("a message");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }

    pub(crate) fn request(&mut self, id: u64, method: &str, params: &Value) -> Value {
        self.send(id, method, params);
        self.receive()
    }

    /// Calls a tool; returns the text of its result.
    pub(crate) fn call(&mut self, id: u64, tool: &str, arguments: &Value) -> String {
        let response = self.request(id, "tools/call", &json!({"name": tool, "arguments": arguments}));
        assert_eq!(response["id"], id, "{response}");
        response["result"]["content"][0]["text"].as_str().expect("a text").to_owned()
    }

    pub(crate) fn tools(&mut self, id: u64) -> Vec<Value> {
        let response = self.request(id, "tools/list", &json!({}));
        response["result"]["tools"].as_array().expect("a list").clone()
    }

    pub(crate) fn close_input(&mut self) {
        self.input = None;
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.server.wait().expect("wait for the server")
    }
}

impl Drop for StdioClient {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}
