//! A minimal HTTP/1.1 client for the servers' Unix sockets: one connection, one request at a time. Responses must
//! declare their length.

use std::io::{Error, ErrorKind, Read, Write};

/// Maximum size of a response.
const MAX_RESPONSE_BYTES: usize = 64 << 20;

const READ_BYTES: usize = 64 << 10;

/// A connection for one request after the other.
pub(crate) struct Connection<S> {
    stream: S,
    received: Vec<u8>,
}

/// A request. `headers` are further header lines, each with its CRLF.
pub(crate) struct Request<'a> {
    pub(crate) method: &'a str,
    pub(crate) path: &'a str,
    pub(crate) host: &'a str,
    pub(crate) headers: &'a str,
    pub(crate) body: &'a str,
}

impl<S: Read + Write> Connection<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self { stream, received: Vec::new() }
    }

    /// Sends a request; returns the status and the body of the response.
    pub(crate) fn send(&mut self, request: &Request<'_>) -> std::io::Result<(u16, Vec<u8>)> {
        let Request { method, path, host, headers, body } = request;
        let length = body.len();
        // In one write: a head sent alone would wait for its acknowledgement.
        let whole = format!(
            "{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n{headers}\r\n{body}"
        );
        self.stream.write_all(whole.as_bytes())?;
        self.received.clear();
        let (end, status, length) = loop {
            if let Some(end) = self.received.windows(4).position(|window| window == b"\r\n\r\n") {
                let (status, length) = parse_head(&self.received[..end]).ok_or_else(invalid_response)?;
                break (end + 4, status, length);
            }
            self.read_some()?;
        };
        while self.received.len() < end + length {
            self.read_some()?;
        }
        Ok((status, self.received[end..end + length].to_vec()))
    }

    fn read_some(&mut self) -> std::io::Result<()> {
        let before = self.received.len();
        if before > MAX_RESPONSE_BYTES {
            return Err(invalid_response());
        }
        self.received.resize(before + READ_BYTES, 0);
        let length = self.stream.read(&mut self.received[before..])?;
        self.received.truncate(before + length);
        if length == 0 { Err(ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    }
}

/// Returns the status and the length of the body.
fn parse_head(head: &[u8]) -> Option<(u16, usize)> {
    let mut lines = std::str::from_utf8(head).ok()?.split("\r\n");
    let status = lines.next()?.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
    let mut headers = lines.filter_map(|line| line.split_once(':'));
    let length = headers.find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    match length {
        Some((_, value)) => {
            value.trim().parse().ok().filter(|length| *length <= MAX_RESPONSE_BYTES).map(|length| (status, length))
        }
        // Responses with these codes have no body.
        None => [202, 204, 304].contains(&status).then_some((status, 0)),
    }
}

fn invalid_response() -> Error {
    Error::new(ErrorKind::InvalidData, "the server sent an invalid HTTP response")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stream that returns a prepared response, a few bytes at a time.
    struct Peer(Vec<u8>);

    impl Read for Peer {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            let length = self.0.len().min(7);
            buffer[..length].copy_from_slice(&self.0[..length]);
            self.0.drain(..length);
            Ok(length)
        }
    }

    impl Write for Peer {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn send(response: &str) -> std::io::Result<(u16, Vec<u8>)> {
        let request = Request { method: "GET", path: "/", host: "localhost", headers: "", body: "" };
        Connection::new(Peer(response.into())).send(&request)
    }

    #[test]
    fn response_has_status_and_body() {
        let response = send("HTTP/1.1 404 Not Found\r\nDate: now\r\ncontent-LENGTH: 7\r\n\r\n{\"a\":1}");
        assert_eq!(response.unwrap(), (404, b"{\"a\":1}".to_vec()));
        assert_eq!(send("HTTP/1.1 202 Accepted\r\n\r\n").unwrap(), (202, Vec::new()));
    }

    #[test]
    fn truncated_and_foreign_responses_are_errors() {
        for response in [
            "",
            "HTTP/1.1 200 OK\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n{\"a\"",
            "HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n{}",
            "SSH-2.0\r\nContent-Length: 2\r\n\r\n{}",
        ] {
            assert!(send(response).is_err(), "{response:?}");
        }
    }
}
