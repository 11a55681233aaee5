//! A registry that responds as a test says, and a client that shows responses as they are.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use ringfence_core::sync::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::http::Head;

/// Delays responses until a test opens it.
#[derive(Clone)]
pub(super) struct Gate(watch::Sender<bool>);

impl Gate {
    pub(super) fn closed() -> Self {
        Self(watch::channel(false).0)
    }

    pub(super) fn open(&self) {
        self.0.send_replace(true);
    }

    async fn wait(&self) {
        let _ = self.0.subscribe().wait_for(|is_open| *is_open).await;
    }
}

/// The response to one request.
pub(super) struct Reply {
    status: &'static str,
    fields: String,
    body: Vec<u8>,
    gate: Option<Gate>,
    etag: Option<&'static str>,
}

impl Reply {
    pub(super) fn new(content_type: &str, body: impl Into<Vec<u8>>) -> Self {
        let fields = format!("Content-Type: {content_type}\r\n");
        Self { status: "200 OK", fields, body: body.into(), gate: None, etag: None }
    }

    pub(super) fn missing() -> Self {
        Self { status: "404 Not Found", ..Self::new("text/plain", "no") }
    }

    pub(super) fn redirect(location: &str) -> Self {
        Self { status: "302 Found", ..Self::new("text/plain", "moved").with("Location", location) }
    }

    pub(super) fn with(mut self, name: &str, value: &str) -> Self {
        let _ = write!(self.fields, "{name}: {value}\r\n");
        self
    }

    /// Sends the body after the gate was opened.
    pub(super) fn after(mut self, gate: &Gate) -> Self {
        self.gate = Some(gate.clone());
        self
    }

    /// Responds with 304 if the request names this entity tag.
    pub(super) fn unless_matches(mut self, etag: &'static str) -> Self {
        self.etag = Some(etag);
        self
    }
}

/// A registry on loopback. It ends when it is dropped.
pub(super) struct Registry {
    pub(super) url: String,
    requests: Arc<Mutex<Vec<String>>>,
    task: JoinHandle<()>,
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Registry {
    pub(super) async fn start(respond: impl Fn(&str) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let requests: Arc<Mutex<Vec<String>>> = Arc::default();
        let (seen, respond) = (Arc::clone(&requests), Arc::new(respond));
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (seen, respond) = (Arc::clone(&seen), Arc::clone(&respond));
                connections.spawn(async move { serve(stream, &seen, &*respond).await });
            }
        });
        Self { url, requests, task }
    }

    /// Returns the heads of all requests.
    pub(super) fn requests(&self) -> Vec<String> {
        self.requests.lock().clone()
    }

    /// Waits for a request that contains a text.
    pub(super) async fn wait_for(&self, text: &str) {
        for _ in 0..500 {
            if self.requests().iter().any(|request| request.contains(text)) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("no request with {text}");
    }
}

async fn serve(stream: TcpStream, seen: &Mutex<Vec<String>>, respond: &(impl Fn(&str) -> Reply + ?Sized)) {
    let (from_client, mut to_client) = stream.into_split();
    let mut from_client = BufReader::new(from_client);
    while let Ok(head) = Head::read(&mut from_client, 16 << 10).await {
        let mut text = Vec::new();
        head.write(&mut text);
        let text = String::from_utf8(text).unwrap();
        let reply = respond(text.split(' ').nth(1).unwrap());
        seen.lock().push(text.clone());
        let is_known = reply.etag.is_some_and(|etag| text.to_lowercase().contains(&format!("if-none-match: {etag}")));
        let (status, body) = if is_known { ("304 Not Modified", Vec::new()) } else { (reply.status, reply.body) };
        let length = if is_known { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
        let head = format!("HTTP/1.1 {status}\r\n{length}{}\r\n", reply.fields);
        if to_client.write_all(head.as_bytes()).await.is_err() {
            return;
        }
        if let Some(gate) = reply.gate {
            gate.wait().await;
        }
        if to_client.write_all(&body).await.is_err() {
            return;
        }
    }
}

/// A response as the guest receives it.
#[derive(Debug)]
pub(super) struct Received {
    pub(super) status: u16,
    head: String,
    pub(super) body: Vec<u8>,
}

impl Received {
    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(super) fn field(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.filter(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value).next()
    }
}

/// Sends a GET request with further fields.
pub(super) async fn get(address: &str, path: &str, fields: &str) -> Received {
    request(address, "GET", path, &format!("{fields}\r\n")).await
}

/// Sends a request; `rest` are further fields, the empty line and the body.
pub(super) async fn request(address: &str, method: &str, path: &str, rest: &str) -> Received {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{rest}");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut received = Vec::new();
    let read = tokio::time::timeout(Duration::from_secs(30), stream.read_to_end(&mut received)).await;
    // The mirror may close the connection with unread bytes of the request.
    let _ = read.expect("a response in time");
    let end = received.windows(4).position(|bytes| bytes == b"\r\n\r\n").expect("a response head") + 4;
    let head = String::from_utf8(received[..end].to_vec()).unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Received { status, head, body: received[end..].to_vec() }
}
