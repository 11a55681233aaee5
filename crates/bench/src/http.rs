//! An HTTP/1.1 client: one connection, one request at a time. The same client calls everything that is compared.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

/// Longer than any call takes; the first call of a hosted server waits for its start.
const TIMEOUT: Duration = Duration::from_mins(3);

const MAX_LINE_BYTES: u64 = 64 << 10;

const MAX_BODY_BYTES: u64 = 64 << 20;

/// A persistent connection.
pub(crate) struct Connection {
    stream: BufReader<TcpStream>,
    host: String,
}

pub(crate) struct Response {
    pub(crate) status: u16,
    /// The value of `Mcp-Session-Id`.
    pub(crate) session_id: Option<String>,
    pub(crate) body: Vec<u8>,
}

impl Connection {
    pub(crate) fn open(address: &str) -> Result<Self> {
        let stream = TcpStream::connect(address).with_context(|| format!("cannot connect to {address}"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        Ok(Self { stream: BufReader::new(stream), host: address.to_owned() })
    }

    pub(crate) fn get(&mut self, path: &str) -> Result<Response> {
        self.send("GET", path, "", "")
    }

    /// Sends JSON. `headers` are additional header lines, each with its CRLF.
    pub(crate) fn post(&mut self, path: &str, headers: &str, body: &str) -> Result<Response> {
        self.send("POST", path, headers, body)
    }

    fn send(&mut self, method: &str, path: &str, headers: &str, body: &str) -> Result<Response> {
        let (host, length) = (&self.host, body.len());
        // One write: a separate write of the head would wait for its acknowledgement.
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n{headers}\r\n{body}"
        );
        self.stream.get_mut().write_all(request.as_bytes())?;
        self.receive()
    }

    fn receive(&mut self) -> Result<Response> {
        let status_line = self.line()?;
        let status = status_line.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok());
        let status = status.with_context(|| format!("not an HTTP response: {status_line:?}"))?;
        let (mut length, mut is_chunked, mut session_id) = (0, false, None);
        loop {
            let line = self.line()?;
            let Some((name, value)) = line.split_once(':') else { break };
            match name.to_ascii_lowercase().as_str() {
                "content-length" => length = value.trim().parse().context("invalid Content-Length")?,
                "transfer-encoding" => is_chunked = value.trim() == "chunked",
                "mcp-session-id" => session_id = Some(value.trim().to_owned()),
                _ => {}
            }
        }
        let body = if is_chunked { self.chunks()? } else { self.bytes(length)? };
        Ok(Response { status, session_id, body })
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        (&mut self.stream).take(MAX_LINE_BYTES).read_line(&mut line)?;
        ensure!(line.ends_with('\n'), "the connection was closed");
        Ok(line.trim_end().to_owned())
    }

    fn bytes(&mut self, length: u64) -> Result<Vec<u8>> {
        ensure!(length <= MAX_BODY_BYTES, "the response has {length} bytes");
        let mut bytes = vec![0; usize::try_from(length)?];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn chunks(&mut self) -> Result<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let length = u64::from_str_radix(&self.line()?, 16).context("invalid chunk length")?;
            body.extend(self.bytes(length)?);
            self.line()?;
            if length == 0 {
                return Ok(body);
            }
            ensure!(body.len() as u64 <= MAX_BODY_BYTES, "the response has more than {MAX_BODY_BYTES} bytes");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Returns what the client makes of a response.
    fn receive(response: &'static str) -> Result<Response> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 1024]).unwrap();
            stream.write_all(response.as_bytes()).unwrap();
        });
        let received = Connection::open(&address).unwrap().get("/");
        server.join().unwrap();
        received
    }

    #[test]
    fn bodies_have_a_length_or_chunks_or_are_empty() {
        let response = receive("HTTP/1.1 404 Not Found\r\nDate: now\r\ncontent-LENGTH: 7\r\n\r\n{\"a\":1}").unwrap();
        assert_eq!((response.status, response.body.as_slice()), (404, &b"{\"a\":1}"[..]));
        let response = receive("HTTP/1.1 202 Accepted\r\nMcp-Session-Id: s1\r\n\r\n").unwrap();
        assert_eq!((response.status, response.session_id.as_deref(), response.body.len()), (202, Some("s1"), 0));
        let chunks = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\na\r\n0123456789\r\n2\r\nab\r\n0\r\n\r\n";
        assert_eq!(receive(chunks).unwrap().body, b"0123456789ab");
    }

    #[test]
    fn truncated_and_foreign_responses_are_errors() {
        for response in [
            "",
            "HTTP/1.1 200 OK\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n{\"a\"",
            "HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n{}",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n",
            "SSH-2.0\r\nContent-Length: 2\r\n\r\n{}",
        ] {
            assert!(receive(response).is_err(), "{response:?}");
        }
    }
}
