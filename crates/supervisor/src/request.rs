//! One HTTP request on a connection of its own. The answer is bounded; the time is the caller's.

use std::io::{Error, ErrorKind, Result};
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// The status of one that has no time to answer.
pub(crate) const BUSY: u16 = 503;

/// A list of a great many tools is shorter.
const MOST_BYTES: u64 = 16 << 20;

pub(crate) struct Response {
    pub(crate) status: u16,
    head: String,
    pub(crate) body: Vec<u8>,
}

impl Response {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.head.split("\r\n").skip(1).filter_map(|line| line.split_once(':'));
        headers.find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
    }
}

/// `headers` are further ones, each with its end of line. Version 1.0: the end of the connection is that of the answer.
pub(crate) async fn ask(address: SocketAddr, method: &str, headers: &str, body: &str) -> Result<Response> {
    let mut stream = TcpStream::connect(address).await?;
    let length = body.len();
    let request = format!(
        "{method} /mcp HTTP/1.0\r\nHost: {address}\r\nContent-Type: application/json\r\nAccept: application/json\r\n\
         Content-Length: {length}\r\n{headers}\r\n{body}"
    );
    let sent = stream.write_all(request.as_bytes()).await;
    let mut answer = Vec::new();
    let read = stream.take(MOST_BYTES + 1).read_to_end(&mut answer).await;
    // Said before the question was read, and then the connection is reset.
    if is_busy(&answer) {
        return Ok(Response { status: BUSY, head: String::new(), body: Vec::new() });
    }
    sent.and(read)?;
    if answer.is_empty() {
        return Err(Error::new(ErrorKind::UnexpectedEof, "the connection was cut"));
    }
    parse(answer).ok_or_else(|| Error::new(ErrorKind::InvalidData, "the answer makes no sense"))
}

/// The reason from `/health` if the worker cannot start sandboxes; none for any other answer.
pub(crate) async fn ill_health(address: SocketAddr) -> Option<String> {
    const MAX_BYTES: u64 = 64 << 10;
    const MAX_CHARS: usize = 500;
    let mut stream = TcpStream::connect(address).await.ok()?;
    stream.write_all(format!("GET /health HTTP/1.0\r\nHost: {address}\r\n\r\n").as_bytes()).await.ok()?;
    let mut answer = Vec::new();
    stream.take(MAX_BYTES).read_to_end(&mut answer).await.ok()?;
    let response = parse(answer).filter(|response| response.status == BUSY)?;
    let health: serde_json::Value = serde_json::from_slice(&response.body).ok()?;
    let reason = health["reason"].as_str().filter(|_| health["status"] == "down")?;
    Some(reason.chars().take(MAX_CHARS).collect())
}

/// Whether there is too much to do. The status alone tells so, whatever follows.
fn is_busy(answer: &[u8]) -> bool {
    answer.strip_prefix(b"HTTP/1.").and_then(|rest| rest.get(1..5)) == Some(b" 503")
}

fn parse(mut answer: Vec<u8>) -> Option<Response> {
    if answer.len() as u64 > MOST_BYTES {
        return None;
    }
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n")?;
    let body = answer.split_off(end + 4);
    let head = String::from_utf8(answer).ok()?;
    let status = head.strip_prefix("HTTP/1.")?.get(2..5)?.parse().ok()?;
    let response = Response { status, head, body };
    let length = response.header("content-length").map(str::parse::<usize>);
    match length {
        // What was cut short is no answer.
        Some(length) if length != Ok(response.body.len()) => None,
        _ => Some(response),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_whole_or_none() {
        let response = parse(b"HTTP/1.0 200 OK\r\nMcp-Session-Id: x\r\ncontent-length: 2\r\n\r\n{}".to_vec()).unwrap();
        assert_eq!((response.status, response.header("mcp-session-id")), (200, Some("x")));
        assert_eq!(response.body, b"{}");
        for broken in ["", "HTTP/1.0 200 OK\r\n", "SSH-2.0\r\n\r\n", "HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\n{}"] {
            assert!(parse(broken.into()).is_none(), "{broken}");
        }
    }

    #[test]
    fn that_there_is_too_much_to_do_is_heard_though_the_rest_is_cut() {
        for busy in ["HTTP/1.1 503 Service Unavailable\r\nContent-Length: 30\r\n\r\n{", "HTTP/1.0 503"] {
            assert!(is_busy(busy.as_bytes()), "{busy}");
        }
        for other in ["", "HTTP/1.1 50", "HTTP/1.1 200 503\r\n\r\n", "SSH-2.0 503"] {
            assert!(!is_busy(other.as_bytes()), "{other}");
        }
    }
}
