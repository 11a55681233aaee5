//! An MCP server over HTTP that misbehaves: each of its tools in a way of its own.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use serde_json::{Value, json};

/// How often an idle connection looks whether the server is still there.
const LOOK: Duration = Duration::from_millis(50);

#[derive(Default)]
struct State {
    is_gone: AtomicBool,
    /// User waits for the answer to a question.
    asking: Mutex<Option<mpsc::Sender<Value>>>,
}

pub(super) struct Upstream {
    pub(super) port: u16,
    state: Arc<State>,
    listening: Option<std::thread::JoinHandle<()>>,
}

impl Upstream {
    pub(super) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let state = Arc::new(State::default());
        let shared = Arc::clone(&state);
        let listening = std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if shared.is_gone.load(Ordering::SeqCst) {
                    return;
                }
                let state = Arc::clone(&shared);
                std::thread::spawn(move || serve(stream, &state));
            }
        });
        Self { port, state, listening: Some(listening) }
    }

    /// The entry of a server `bad` that is this one.
    pub(super) fn entry(&self) -> String {
        format!("[servers.bad]\nurl = \"http://127.0.0.1:{}/mcp\"\n", self.port)
    }

    /// From now on nobody is at its address.
    pub(super) fn go_away(&mut self) {
        self.state.is_gone.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        self.listening.take().map(std::thread::JoinHandle::join).expect("it was there").expect("it ends");
        std::thread::sleep(4 * LOOK);
    }
}

fn serve(stream: TcpStream, state: &State) -> Option<()> {
    let mut reader = BufReader::new(stream);
    loop {
        reader.get_ref().set_read_timeout(Some(LOOK)).ok()?;
        while let Err(error) = reader.fill_buf() {
            let is_idle = matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut);
            if !is_idle || state.is_gone.load(Ordering::SeqCst) {
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
        let (status, answer) = match (message.get("id"), message["method"].as_str()) {
            (Some(id), Some("tools/call")) => match message["params"]["name"].as_str() {
                Some("late") => {
                    let error = json!({"code": -32001, "message": "Request timed out", "data": {"retry_after_ms": 7}});
                    ("200 OK", json!({"jsonrpc": "2.0", "id": id, "error": error}).to_string())
                }
                Some("ask") => return ask(reader.get_mut(), id, state),
                Some("hang") => loop {
                    // Until the other side is gone.
                    reader.read_exact(&mut [0]).ok()?;
                },
                _ => return None,
            },
            (Some(id), Some(method)) => ("200 OK", json_answer(id, method)),
            (Some(_), None) => {
                let asking = state.asking.lock().expect("nobody panics").take();
                let _ = asking?.send(message["result"].clone());
                ("202 Accepted", String::new())
            }
            (None, _) if length > 0 => ("202 Accepted", String::new()),
            (None, _) => ("405 Method Not Allowed", String::new()),
        };
        let head = format!("HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}", answer.len());
        reader.get_mut().write_all(format!("{head}\r\n\r\n{answer}").as_bytes()).ok()?;
    }
}

fn json_answer(id: &Value, method: &str) -> String {
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

/// Answers a call with what the client has answered to a question.
fn ask(stream: &mut TcpStream, id: &Value, state: &State) -> Option<()> {
    let (asking, answered) = mpsc::channel();
    *state.asking.lock().expect("nobody panics") = Some(asking);
    let question = json!({"jsonrpc": "2.0", "id": "q", "method": "elicitation/create",
        "params": {"message": "Which colour?", "requestedSchema": {"type": "object", "properties": {}}}});
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n";
    stream.write_all(format!("{head}data: {question}\n\n").as_bytes()).ok()?;
    let said = answered.recv().ok()?.to_string();
    let result = json!({"content": [{"type": "text", "text": said}]});
    let answer = json!({"jsonrpc": "2.0", "id": id, "result": result});
    stream.write_all(format!("data: {answer}\n\n").as_bytes()).ok()
}
