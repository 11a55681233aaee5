//! A server as somebody starts it, asked over HTTP.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use ringfence_testkit::Who;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::everyone::BINARY;

/// A server on a port of its own. Dropped, it is ended.
pub(crate) struct Server {
    pub(crate) process: Child,
    pub(crate) address: String,
    /// Not the one of whoever runs the tests.
    pub(crate) state: Arc<TempDir>,
}

impl Server {
    pub(crate) fn start(options: &[&str], variables: &[(&str, &str)]) -> Self {
        let state = Arc::new(tempfile::tempdir().expect("a directory"));
        Self::spawn(Command::new(BINARY), options, variables, state)
    }

    /// The same, with the state of one before it.
    pub(crate) fn start_again(state: Arc<TempDir>, options: &[&str], variables: &[(&str, &str)]) -> Self {
        Self::spawn(Command::new(BINARY), options, variables, state)
    }

    /// The same, started by another program.
    pub(crate) fn start_by(command: Command) -> Self {
        Self::spawn(command, &[], &[], Arc::new(tempfile::tempdir().expect("a directory")))
    }

    pub(crate) fn start_as(who: Who, options: &[&str], variables: &[(&str, &str)]) -> Self {
        Self::start_in(who, Arc::new(who.directory()), options, variables)
    }

    /// With a state directory that others may share.
    pub(crate) fn start_in(who: Who, state: Arc<TempDir>, options: &[&str], variables: &[(&str, &str)]) -> Self {
        Self::spawn(who.ringfence(Path::new(BINARY)), options, variables, state)
    }

    fn spawn(mut command: Command, options: &[&str], variables: &[(&str, &str)], state: Arc<TempDir>) -> Self {
        command.env("RINGFENCE_STATE_DIR", state.path());
        command.args(["serve", "--port", "0"]).args(options).envs(variables.iter().copied());
        let mut process = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts");
        let mut lines = BufReader::new(process.stderr.take().expect("stderr is piped")).lines();
        let address = lines.by_ref().map(|line| line.expect("it is text")).find_map(|line| {
            let (_, rest) = line.split_once("http://")?;
            rest.strip_suffix("/mcp").map(ToOwned::to_owned)
        });
        // Whatever else it logs must not fill the pipe.
        std::thread::spawn(move || lines.count());
        Self { process, address: address.expect("it says where it listens"), state }
    }

    /// A request as curl would send it; gives the status and the body.
    pub(crate) fn ask(&self, request: &str, headers: &str, body: &str) -> (u16, String) {
        let (status, body) = self.ask_bytes(request, headers, body.as_bytes());
        (status, String::from_utf8(body).expect("the answer is text"))
    }

    pub(crate) fn ask_bytes(&self, request: &str, headers: &str, body: &[u8]) -> (u16, Vec<u8>) {
        let mut stream = TcpStream::connect(&self.address).expect("it listens");
        let length = body.len();
        let head = format!("{request} HTTP/1.1\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n");
        // A request that is refused early is not read to its end.
        let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let end = answer.windows(4).position(|window| window == b"\r\n\r\n").expect("it answers");
        let head = String::from_utf8_lossy(&answer[..end]).into_owned();
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        (status, answer.split_off(end + 4))
    }

    /// Calls a tool; gives the whole answer.
    pub(crate) fn call(&self, tool: &str, arguments: &Value) -> Value {
        self.request("tools/call", &json!({"name": tool, "arguments": arguments}))
    }

    /// Asks anything of MCP; gives the whole answer.
    pub(crate) fn request(&self, method: &str, params: &Value) -> Value {
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        let headers = format!("Host: {}\r\nContent-Type: application/json\r\n", self.address);
        let (_, body) = self.ask("POST /mcp", &headers, &call.to_string());
        serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}"))
    }
}

impl Server {
    /// Sends a request without waiting for the answer.
    pub(crate) fn send(&self, request: &str, body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).expect("it listens");
        let head = format!(
            "{request} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        );
        stream.write_all(head.as_bytes()).expect("it reads");
        stream
    }

    /// The most memory that it has had so far.
    pub(crate) fn peak_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.id())).expect("it lives");
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB"));
        peak.and_then(|kib| kib.parse::<u64>().ok()).expect("the kernel says so") * 1024
    }

    /// Kills it, and gives its state.
    pub(crate) fn kill(mut self) -> Arc<TempDir> {
        self.process.kill().expect("it can be killed");
        let _ = self.process.wait();
        Arc::clone(&self.state)
    }

    /// Ends it in order, and gives its state.
    pub(crate) fn end(self) -> Arc<TempDir> {
        Arc::clone(&self.state)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = rustix::process::kill_process(
            rustix::process::Pid::from_child(&self.process),
            rustix::process::Signal::INT,
        );
        let _ = self.process.wait();
    }
}
