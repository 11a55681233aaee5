//! A running `ringfence serve`, and an HTTP client for it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{User, ringfence_path};

/// A server on a free port. It is stopped when this is dropped.
pub struct Server {
    pub process: Child,
    /// `127.0.0.1:PORT`
    pub address: String,
    /// The state directory.
    pub state: Arc<TempDir>,
}

/// The default timeouts of calls, set to their maximum: on a busy machine, code of tests takes long. Tests of timeouts pass
/// theirs with the call, or lower the maximum.
const LONG_TIMEOUTS: [(&str, &str); 2] = [("RINGFENCE_SESSIONS_TIMEOUT_S", "120"), ("RINGFENCE_CODE_TIMEOUT_S", "120")];

impl Server {
    /// Starts a server with a new state directory.
    pub fn start(options: &[&str], variables: &[(&str, &str)]) -> Self {
        Self::start_again(new_directory(), options, variables)
    }

    /// Starts a server with the state directory of an earlier one.
    pub fn start_again(state: Arc<TempDir>, options: &[&str], variables: &[(&str, &str)]) -> Self {
        Self::spawn(Command::new(ringfence_path()), options, variables, state)
    }

    /// Starts a server with a command that ends in the path of `ringfence`.
    pub fn start_by(command: Command) -> Self {
        Self::spawn(command, &[], &[], new_directory())
    }

    /// Starts a server as a user.
    pub fn start_as(user: User, options: &[&str], variables: &[(&str, &str)]) -> Self {
        Self::start_in(user, Arc::new(user.directory()), options, variables)
    }

    /// Starts a server as a user, with a state directory that other servers may share.
    pub fn start_in(user: User, state: Arc<TempDir>, options: &[&str], variables: &[(&str, &str)]) -> Self {
        Self::spawn(user.ringfence(), options, variables, state)
    }

    fn spawn(mut command: Command, options: &[&str], variables: &[(&str, &str)], state: Arc<TempDir>) -> Self {
        command.env("RINGFENCE_STATE_DIR", state.path());
        if !variables.iter().any(|(name, _)| name.ends_with("_MAX_TIMEOUT_S")) {
            command.envs(LONG_TIMEOUTS);
        }
        command.args(["serve", "--port", "0"]).args(options).envs(variables.iter().copied());
        Self::wait_for_address(command, state)
    }

    /// Starts a server with a complete command.
    pub fn start_command(mut command: Command, state: Arc<TempDir>) -> Self {
        command.env("RINGFENCE_STATE_DIR", state.path());
        Self::wait_for_address(command, state)
    }

    fn wait_for_address(mut command: Command, state: Arc<TempDir>) -> Self {
        let mut process = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("start the server");
        let mut lines = BufReader::new(process.stderr.take().expect("stderr is piped")).lines();
        let mut log = Vec::new();
        let address = lines.by_ref().map(|line| line.expect("the log is UTF-8")).find_map(|line| {
            let address = line.split_once("http://").and_then(|(_, rest)| rest.strip_suffix("/mcp"));
            let address = address.map(ToOwned::to_owned);
            log.push(line);
            address
        });
        let address = address.unwrap_or_else(|| panic!("the server does not log its address: {log:#?}"));
        // An unread pipe would block the server as soon as it is full.
        std::thread::spawn(move || lines.count());
        Self { process, address, state }
    }

    /// Sends an HTTP request with these header lines; returns the status and the body of the response.
    pub fn http(&self, request: &str, headers: &str, body: &str) -> (u16, String) {
        let (status, body) = self.http_bytes(request, headers, body.as_bytes());
        (status, String::from_utf8(body).expect("the body is UTF-8"))
    }

    pub fn http_bytes(&self, request: &str, headers: &str, body: &[u8]) -> (u16, Vec<u8>) {
        let mut stream = TcpStream::connect(&self.address).expect("connect to the server");
        let length = body.len();
        let head = format!("{request} HTTP/1.1\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n");
        // The server may refuse a request and close the connection before it has read all.
        let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
        let mut response = Vec::new();
        let _ = stream.read_to_end(&mut response);
        let end = response.windows(4).position(|window| window == b"\r\n\r\n").expect("a response");
        let head = String::from_utf8_lossy(&response[..end]).into_owned();
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        (status, response.split_off(end + 4))
    }

    /// Sends an HTTP request without waiting for the response.
    pub fn send(&self, request: &str, body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).expect("connect to the server");
        let head = format!(
            "{request} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        );
        stream.write_all(head.as_bytes()).expect("send the request");
        stream
    }

    /// Calls a tool; returns the JSON-RPC response.
    pub fn call(&self, tool: &str, arguments: &Value) -> Value {
        self.request("tools/call", &json!({"name": tool, "arguments": arguments}))
    }

    /// Sends an MCP request; returns the JSON-RPC response.
    pub fn request(&self, method: &str, params: &Value) -> Value {
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        let headers = format!("Host: {}\r\nContent-Type: application/json\r\n", self.address);
        let (_, body) = self.http("POST /mcp", &headers, &call.to_string());
        serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}"))
    }

    /// Runs code in a new session; returns the id of the session.
    pub fn create_session(&self, template: &str, code: &str) -> String {
        let response = self.call("execute_code", &json!({"code": code, "template": template}));
        let content = &response["result"]["structuredContent"];
        content["session_id"].as_str().unwrap_or_else(|| panic!("no session: {response}")).to_owned()
    }

    /// Runs code in a session; returns the structured content of the result.
    pub fn execute(&self, session: &str, code: &str) -> Value {
        let response = self.call("execute_code", &json!({"code": code, "session_id": session}));
        let content = response["result"]["structuredContent"].clone();
        assert!(content.is_object(), "{response}");
        content
    }

    /// Creates an empty file in the workspace of a session. Uses the operator socket, which accepts requests during a
    /// graceful shutdown too.
    pub fn create_file(&self, session: &str, path: &str) {
        let sockets = std::fs::read_dir(self.state.path().join("servers")).expect("read the directory of sockets");
        let socket = sockets.flatten().next().expect("an operator socket").path();
        let mut stream = UnixStream::connect(socket).expect("connect to the operator socket");
        let request = format!("PUT /v1/sessions/{session}/files/{path} HTTP/1.1");
        let headers = "Host: localhost\r\nConnection: close\r\nContent-Length: 0";
        stream.write_all(format!("{request}\r\n{headers}\r\n\r\n").as_bytes()).expect("send the request");
        let mut response = String::new();
        stream.read_to_string(&mut response).expect("read the response");
        assert!(response.starts_with("HTTP/1.1 2"), "{response}");
    }

    /// Returns the peak memory of the server process.
    pub fn peak_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.id())).expect("read its status");
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB"));
        peak.and_then(|kib| kib.parse::<u64>().ok()).expect("a peak in the status") * 1024
    }

    /// Kills the server; returns its state directory.
    pub fn kill(mut self) -> Arc<TempDir> {
        self.process.kill().expect("kill the server");
        let _ = self.process.wait();
        Arc::clone(&self.state)
    }

    /// Stops the server; returns its state directory.
    pub fn stop(self) -> Arc<TempDir> {
        Arc::clone(&self.state)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.process), Signal::INT);
        let _ = self.process.wait();
    }
}

fn new_directory() -> Arc<TempDir> {
    Arc::new(tempfile::tempdir().expect("a directory"))
}
