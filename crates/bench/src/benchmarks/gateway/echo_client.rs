//! A minimal MCP client over streamable HTTP that calls an echo tool.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::http::Connection;

const HEADERS: &str = "Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2025-06-18\r\n";

const MESSAGE: &str = "heliotrope";

/// Returns a call of the echo tool that has this name.
pub(super) fn echo_request(tool: &str) -> Value {
    let params = json!({"name": tool, "arguments": {"message": MESSAGE}});
    json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
}

pub(super) fn is_echo_response(message: &[u8]) -> bool {
    let message: Value = serde_json::from_slice(message).unwrap_or_default();
    message["result"]["content"][0]["text"] == MESSAGE
}

pub(super) struct EchoClient {
    connection: Connection,
    /// Header lines of every request, with the session id if the server has set one.
    headers: String,
    call: String,
}

impl EchoClient {
    /// Connects, initializes the session, and makes one call.
    pub(super) fn connect(address: &str, tool: &str) -> Result<Self> {
        let (headers, call) = (HEADERS.to_owned(), echo_request(tool).to_string());
        let mut client = Self { connection: Connection::open(address)?, headers, call };
        let client_info = json!({"name": "ringfence-bench", "version": env!("CARGO_PKG_VERSION")});
        let params = json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client_info});
        client.send(&json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}).to_string())?;
        client.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}).to_string())?;
        client.call()?;
        Ok(client)
    }

    pub(super) fn call(&mut self) -> Result<Duration> {
        let call = self.call.clone();
        let start = Instant::now();
        let body = self.send(&call)?;
        let time = start.elapsed();
        ensure!(is_echo_response(message(&body)), "unexpected response: {}", String::from_utf8_lossy(&body).trim());
        Ok(time)
    }

    fn send(&mut self, body: &str) -> Result<Vec<u8>> {
        let response = self.connection.post("/mcp", &self.headers, body)?;
        if let Some(id) = response.session_id {
            self.headers = format!("{HEADERS}Mcp-Session-Id: {id}\r\n");
        }
        let status = response.status;
        ensure!((200..300).contains(&status), "status {status}: {}", String::from_utf8_lossy(&response.body).trim());
        Ok(response.body)
    }
}

/// Returns the data of the last event, or the whole body if it is not an event stream.
fn message(body: &[u8]) -> &[u8] {
    let lines = body.split(|byte| *byte == b'\n');
    lines.filter_map(|line| line.strip_prefix(b"data:")).next_back().unwrap_or(body)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Read as _, Write as _};
    use std::net::TcpListener;

    use super::*;

    /// Connects to a server that sends these responses.
    fn connect(responses: [&str; 3]) -> Result<EchoClient> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let (stream, _) = listener.accept().unwrap();
                let mut stream = BufReader::new(stream);
                for response in responses {
                    let mut length = 0;
                    loop {
                        let mut line = String::new();
                        stream.read_line(&mut line).unwrap();
                        length =
                            line.strip_prefix("Content-Length: ").map_or(length, |text| text.trim().parse().unwrap());
                        if line.trim().is_empty() {
                            break;
                        }
                    }
                    stream.read_exact(&mut vec![0; length]).unwrap();
                    stream.get_mut().write_all(response.as_bytes()).unwrap();
                }
            });
            EchoClient::connect(&address, "echo")
        })
    }

    const INITIALIZED: &str = "HTTP/1.1 200 OK\r\nMcp-Session-Id: s1\r\nContent-Length: 2\r\n\r\n{}";
    const ACCEPTED: &str = "HTTP/1.1 202 Accepted\r\n\r\n";

    #[test]
    fn event_streams_are_parsed_and_the_session_id_is_sent_back() {
        let event = format!("event: message\ndata: {{\"result\":{{\"content\":[{{\"text\":\"{MESSAGE}\"}}]}}}}\n\n");
        let stream =
            format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{event}\r\n0\r\n\r\n", event.len());
        let client = connect([INITIALIZED, ACCEPTED, &stream]).unwrap();
        assert!(client.headers.ends_with("\r\nMcp-Session-Id: s1\r\n"), "{}", client.headers);
    }

    #[test]
    fn other_responses_are_errors() {
        let wrong = "HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n{\"result\":{}}";
        assert!(connect([INITIALIZED, ACCEPTED, wrong]).is_err());
        let missing = "HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nnone";
        assert!(connect([INITIALIZED, ACCEPTED, missing]).err().unwrap().to_string().contains("404"));
    }
}
