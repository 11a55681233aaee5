//! Sends one HTTP request on a new connection. The size of the response is limited; the caller sets the timeout.

use std::io::{Error, ErrorKind, Result};
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// The status of an overloaded worker.
pub(crate) const BUSY: u16 = 503;

/// Maximum size of a response, more than any list of tools needs.
const MAX_RESPONSE_BYTES: u64 = 16 << 20;

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

/// Sends a request to `/mcp`. Each line of `headers` ends with CRLF. With HTTP/1.0 the response ends with the connection.
pub(crate) async fn send_request(address: SocketAddr, method: &str, headers: &str, body: &str) -> Result<Response> {
    let mut stream = TcpStream::connect(address).await?;
    let length = body.len();
    let request = format!(
        "{method} /mcp HTTP/1.0\r\nHost: {address}\r\nContent-Type: application/json\r\nAccept: application/json\r\n\
         Content-Length: {length}\r\n{headers}\r\n{body}"
    );
    let sent = stream.write_all(request.as_bytes()).await;
    let mut bytes = Vec::new();
    let read = stream.take(MAX_RESPONSE_BYTES + 1).read_to_end(&mut bytes).await;
    // An overloaded worker responds without reading the request, which resets the connection.
    if is_busy(&bytes) {
        return Ok(Response { status: BUSY, head: String::new(), body: Vec::new() });
    }
    sent.and(read)?;
    if bytes.is_empty() {
        return Err(Error::new(ErrorKind::UnexpectedEof, "the worker closed the connection without a response"));
    }
    parse(bytes).ok_or_else(|| Error::new(ErrorKind::InvalidData, "the response is not valid HTTP"))
}

/// Requests `/health`. Fails with the reason unless the worker responds that it can start sandboxes.
pub(crate) async fn check_health(address: SocketAddr) -> std::result::Result<(), String> {
    const MAX_BYTES: u64 = 64 << 10;
    const MAX_CHARS: usize = 500;
    let request = format!("GET /health HTTP/1.0\r\nHost: {address}\r\n\r\n");
    let exchange = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(request.as_bytes()).await?;
        let mut bytes = Vec::new();
        stream.take(MAX_BYTES).read_to_end(&mut bytes).await?;
        parse(bytes).ok_or_else(|| Error::new(ErrorKind::InvalidData, "the response is not valid HTTP"))
    };
    let response = exchange.await.map_err(|error| format!("the worker did not report its health: {error}"))?;
    if response.status == 200 {
        return Ok(());
    }
    let health: serde_json::Value = serde_json::from_slice(&response.body).unwrap_or_default();
    Err(match health["reason"].as_str() {
        Some(reason) => reason.chars().take(MAX_CHARS).collect(),
        None => format!("the health check of the worker failed with HTTP status {}", response.status),
    })
}

/// Whether the status is 503. The rest of the response may be missing.
fn is_busy(bytes: &[u8]) -> bool {
    bytes.strip_prefix(b"HTTP/1.").and_then(|rest| rest.get(1..5)) == Some(b" 503")
}

fn parse(mut bytes: Vec<u8>) -> Option<Response> {
    if bytes.len() as u64 > MAX_RESPONSE_BYTES {
        return None;
    }
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    let body = bytes.split_off(end + 4);
    let head = String::from_utf8(bytes).ok()?;
    let status = head.strip_prefix("HTTP/1.")?.get(2..5)?.parse().ok()?;
    let response = Response { status, head, body };
    let length = response.header("content-length").map(str::parse::<usize>);
    match length {
        // The response is truncated.
        Some(length) if length != Ok(response.body.len()) => None,
        _ => Some(response),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truncated_and_invalid_responses_are_rejected() {
        let response = parse(b"HTTP/1.0 200 OK\r\nMcp-Session-Id: x\r\ncontent-length: 2\r\n\r\n{}".to_vec()).unwrap();
        assert_eq!((response.status, response.header("mcp-session-id")), (200, Some("x")));
        assert_eq!(response.body, b"{}");
        for broken in ["", "HTTP/1.0 200 OK\r\n", "SSH-2.0\r\n\r\n", "HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\n{}"] {
            assert!(parse(broken.into()).is_none(), "{broken}");
        }
    }

    #[test]
    fn overload_is_recognized_in_truncated_response() {
        for busy in ["HTTP/1.1 503 Service Unavailable\r\nContent-Length: 30\r\n\r\n{", "HTTP/1.0 503"] {
            assert!(is_busy(busy.as_bytes()), "{busy}");
        }
        for invalid in ["", "HTTP/1.1 50", "HTTP/1.1 200 503\r\n\r\n", "SSH-2.0 503"] {
            assert!(!is_busy(invalid.as_bytes()), "{invalid}");
        }
    }
}
