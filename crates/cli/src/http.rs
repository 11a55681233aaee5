//! HTTP/1.1 as a client: one connection, one request at a time, answers whose length is declared.

use std::io::{Error, ErrorKind, Read, Write};

/// No answer has reason to be longer.
const MOST_BYTES: usize = 64 << 20;

const READ_AT_ONCE: usize = 64 << 10;

/// A connection that is kept from one request to the next.
pub(crate) struct Connection<S> {
    stream: S,
    received: Vec<u8>,
}

/// What is asked. `head` is further headers, each with its end of line.
pub(crate) struct Request<'a> {
    pub(crate) method: &'a str,
    pub(crate) path: &'a str,
    pub(crate) host: &'a str,
    pub(crate) head: &'a str,
    pub(crate) body: &'a str,
}

impl<S: Read + Write> Connection<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self { stream, received: Vec::new() }
    }

    /// Gives the status and the body.
    pub(crate) fn ask(&mut self, request: &Request<'_>) -> std::io::Result<(u16, Vec<u8>)> {
        let Request { method, path, host, head, body } = request;
        let length = body.len();
        // In one piece: a head that travels alone would wait to be acknowledged.
        let whole = format!(
            "{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n{head}\r\n{body}"
        );
        self.stream.write_all(whole.as_bytes())?;
        self.received.clear();
        let (end, status, length) = loop {
            if let Some(end) = self.received.windows(4).position(|window| window == b"\r\n\r\n") {
                let (status, length) = parse(&self.received[..end]).ok_or_else(nonsense)?;
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
        if before > MOST_BYTES {
            return Err(nonsense());
        }
        self.received.resize(before + READ_AT_ONCE, 0);
        let length = self.stream.read(&mut self.received[before..])?;
        self.received.truncate(before + length);
        if length == 0 { Err(ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    }
}

/// The status, and the length of the body.
fn parse(head: &[u8]) -> Option<(u16, usize)> {
    let mut lines = std::str::from_utf8(head).ok()?.split("\r\n");
    let status = lines.next()?.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
    let mut headers = lines.filter_map(|line| line.split_once(':'));
    let length = headers.find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    match length {
        Some((_, value)) => {
            value.trim().parse().ok().filter(|length| *length <= MOST_BYTES).map(|length| (status, length))
        }
        // The answers that have no body.
        None => [202, 204, 304].contains(&status).then_some((status, 0)),
    }
}

fn nonsense() -> Error {
    Error::new(ErrorKind::InvalidData, "its answer makes no sense")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Says what it was told to, a few bytes at a time.
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

    fn ask(answer: &str) -> std::io::Result<(u16, Vec<u8>)> {
        let request = Request { method: "GET", path: "/", host: "localhost", head: "", body: "" };
        Connection::new(Peer(answer.into())).ask(&request)
    }

    #[test]
    fn an_answer_is_a_status_and_a_body() {
        let answer = ask("HTTP/1.1 404 Not Found\r\nDate: now\r\ncontent-LENGTH: 7\r\n\r\n{\"a\":1}");
        assert_eq!(answer.unwrap(), (404, b"{\"a\":1}".to_vec()));
        assert_eq!(ask("HTTP/1.1 202 Accepted\r\n\r\n").unwrap(), (202, Vec::new()));
    }

    #[test]
    fn what_is_cut_or_foreign_is_no_answer() {
        for answer in [
            "",
            "HTTP/1.1 200 OK\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n{\"a\"",
            "HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n{}",
            "SSH-2.0\r\nContent-Length: 2\r\n\r\n{}",
        ] {
            assert!(ask(answer).is_err(), "{answer:?}");
        }
    }
}
