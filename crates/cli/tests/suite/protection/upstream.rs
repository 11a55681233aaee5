//! An MCP server over HTTP whose tools fail in different ways.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Value, json};

/// Interval at which an idle connection checks whether the server was stopped.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

#[derive(Default)]
struct State {
    is_stopped: AtomicBool,
    /// The call that waits for a response of the client.
    elicitation: Mutex<Option<mpsc::Sender<Value>>>,
}

pub(super) struct Upstream {
    pub(super) port: u16,
    state: Arc<State>,
    /// Returns the threads of the connections.
    listener: Option<JoinHandle<Vec<JoinHandle<()>>>>,
}

impl Upstream {
    pub(super) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind a port");
        let port = listener.local_addr().expect("the bound address").port();
        let state = Arc::new(State::default());
        let shared = Arc::clone(&state);
        let listener = std::thread::spawn(move || {
            let mut connections = Vec::new();
            for stream in listener.incoming().flatten() {
                if shared.is_stopped.load(Ordering::SeqCst) {
                    break;
                }
                let state = Arc::clone(&shared);
                connections.push(std::thread::spawn(move || {
                    serve(stream, &state);
                }));
            }
            connections
        });
        Self { port, state, listener: Some(listener) }
    }

    /// The configuration entry of this server, with the name `bad`.
    pub(super) fn entry(&self) -> String {
        format!("[servers.bad]\nurl = \"http://127.0.0.1:{}/mcp\"\n", self.port)
    }

    /// Closes the port and all connections. No call may be running.
    pub(super) fn stop(&mut self) {
        self.state.is_stopped.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        let listener = self.listener.take().expect("the server runs");
        for connection in listener.join().expect("join the listener") {
            connection.join().expect("join a connection");
        }
    }
}

fn serve(stream: TcpStream, state: &State) -> Option<()> {
    let mut reader = BufReader::new(stream);
    loop {
        reader.get_ref().set_read_timeout(Some(POLL_INTERVAL)).ok()?;
        while let Err(error) = reader.fill_buf() {
            let is_idle = matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut);
            if !is_idle || state.is_stopped.load(Ordering::SeqCst) {
                return None;
            }
        }
        reader.get_ref().set_read_timeout(None).ok()?;
        let (mut length, mut line) = (0, String::new());
        while reader.read_line(&mut line).ok()? > 2 {
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().ok()?;
            }
            line.clear();
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        let message: Value = serde_json::from_slice(&body).unwrap_or_default();
        let (status, response) = match (message.get("id"), message["method"].as_str()) {
            (Some(id), Some("tools/call")) => match message["params"]["name"].as_str() {
                Some("late") => {
                    let error = json!({"code": -32001, "message": "Request timed out", "data": {"retry_after_ms": 7}});
                    ("200 OK", json!({"jsonrpc": "2.0", "id": id, "error": error}).to_string())
                }
                Some("ask") => return elicit(reader.get_mut(), id, state),
                Some("hang") => loop {
                    // Until the client disconnects.
                    reader.read_exact(&mut [0]).ok()?;
                },
                _ => return None,
            },
            (Some(id), Some(method)) => ("200 OK", encode_response(id, method)),
            (Some(_), None) => {
                let waiting_call = state.elicitation.lock().expect("lock the state").take();
                let _ = waiting_call?.send(message["result"].clone());
                ("202 Accepted", String::new())
            }
            (None, _) if length > 0 => ("202 Accepted", String::new()),
            (None, _) => ("405 Method Not Allowed", String::new()),
        };
        let head = format!("HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}", response.len());
        reader.get_mut().write_all(format!("{head}\r\n\r\n{response}").as_bytes()).ok()?;
    }
}

fn encode_response(id: &Value, method: &str) -> String {
    let result = match method {
        "initialize" => json!({"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
            "serverInfo": {"name": "misbehaves", "version": "1"}}),
        "tools/list" => {
            let tool = |name: &str| json!({"name": name, "inputSchema": {"type": "object"}});
            let tools = ["work", "late", "ask", "hang"].map(tool);
            json!({"tools": tools})
        }
        "ping" => json!({}),
        _ => {
            let error = json!({"code": -32601, "message": "no such method"});
            return json!({"jsonrpc": "2.0", "id": id, "error": error}).to_string();
        }
    };
    json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string()
}

/// Sends an elicitation request; the result of the call is the response of the client.
fn elicit(stream: &mut TcpStream, id: &Value, state: &State) -> Option<()> {
    let (sender, receiver) = mpsc::channel();
    *state.elicitation.lock().expect("lock the state") = Some(sender);
    let request = json!({"jsonrpc": "2.0", "id": "q", "method": "elicitation/create",
        "params": {"message": "Which colour?", "requestedSchema": {"type": "object", "properties": {}}}});
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n";
    stream.write_all(format!("{head}data: {request}\n\n").as_bytes()).ok()?;
    let text = receiver.recv().ok()?.to_string();
    let result = json!({"content": [{"type": "text", "text": text}]});
    let response = json!({"jsonrpc": "2.0", "id": id, "result": result});
    stream.write_all(format!("data: {response}\n\n").as_bytes()).ok()
}
