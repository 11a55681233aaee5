//! A client of streamable HTTP that keeps one connection, as small as it can be: the same for all that is compared.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

/// For the first call, which may wait until a server is hosted.
const PATIENCE: Duration = Duration::from_secs(120);

/// No answer has reason to be longer.
const MOST_BYTES: u64 = 1 << 20;

const WORD: &str = "heliotrope";

/// A call of the tool by its name there.
pub(super) fn echo(tool: &str) -> Value {
    let params = json!({"name": tool, "arguments": {"message": WORD}});
    json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
}

pub(super) fn is_answer(message: &[u8]) -> bool {
    let message: Value = serde_json::from_slice(message).unwrap_or_default();
    message["result"]["content"][0]["text"] == WORD
}

pub(super) struct Talk {
    stream: BufReader<TcpStream>,
    host: String,
    /// The session's header, where there is one.
    session: String,
    call: String,
}

impl Talk {
    /// Connects, greets, and calls once.
    pub(super) fn open(address: &str, tool: &str) -> Result<Self> {
        let stream = TcpStream::connect(address).context("it cannot be reached")?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let (session, call) = (String::new(), echo(tool).to_string());
        let mut talk = Self { stream: BufReader::new(stream), host: address.to_owned(), session, call };
        let client = json!({"name": "ringfence-bench", "version": env!("CARGO_PKG_VERSION")});
        let hello = json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client});
        talk.ask(&json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello}).to_string())?;
        talk.ask(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}).to_string())?;
        talk.call()?;
        Ok(talk)
    }

    pub(super) fn call(&mut self) -> Result<Duration> {
        let call = self.call.clone();
        let start = Instant::now();
        let body = self.ask(&call)?;
        let time = start.elapsed();
        ensure!(is_answer(message(&body)), "it answered {}", String::from_utf8_lossy(&body).trim());
        Ok(time)
    }

    fn ask(&mut self, body: &str) -> Result<Vec<u8>> {
        let Self { host, session, .. } = self;
        let length = body.len();
        let whole = format!(
            "POST /mcp HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\
             Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2025-06-18\r\n{session}\r\n{body}"
        );
        self.stream.get_mut().write_all(whole.as_bytes())?;
        let status = self.line()?;
        let (mut length, mut is_chunked) = (0, false);
        loop {
            let line = self.line()?;
            let Some((name, value)) = line.split_once(':') else { break };
            match name.to_ascii_lowercase().as_str() {
                "content-length" => length = value.trim().parse()?,
                "transfer-encoding" => is_chunked = value.trim() == "chunked",
                "mcp-session-id" => self.session = format!("Mcp-Session-Id: {}\r\n", value.trim()),
                _ => {}
            }
        }
        let body = if is_chunked { self.chunks()? } else { self.bytes(length)? };
        let is_fine = status.split(' ').nth(1).is_some_and(|status| status.starts_with('2'));
        ensure!(is_fine, "it answered {status}: {}", String::from_utf8_lossy(&body).trim());
        Ok(body)
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        (&mut self.stream).take(MOST_BYTES).read_line(&mut line)?;
        ensure!(line.ends_with('\n'), "it closed the connection");
        Ok(line.trim_end().to_owned())
    }

    fn bytes(&mut self, length: u64) -> Result<Vec<u8>> {
        ensure!(length <= MOST_BYTES, "its answer has {length} bytes");
        let mut bytes = vec![0; usize::try_from(length)?];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn chunks(&mut self) -> Result<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let length = u64::from_str_radix(&self.line()?, 16).context("a chunk has no length")?;
            body.extend(self.bytes(length)?);
            self.line()?;
            if length == 0 {
                return Ok(body);
            }
            if body.len() as u64 > MOST_BYTES {
                bail!("its answer does not end");
            }
        }
    }
}

/// The last event of a stream, or all of a body that is none.
fn message(body: &[u8]) -> &[u8] {
    let lines = body.split(|byte| *byte == b'\n');
    lines.filter_map(|line| line.strip_prefix(b"data:")).next_back().unwrap_or(body)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn answered(answers: [&str; 3]) -> Result<Talk> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let (stream, _) = listener.accept().unwrap();
                let mut stream = BufReader::new(stream);
                for answer in answers {
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
                    stream.get_mut().write_all(answer.as_bytes()).unwrap();
                }
            });
            Talk::open(&address, "echo")
        })
    }

    const WELCOME: &str = "HTTP/1.1 200 OK\r\nMcp-Session-Id: s1\r\nContent-Length: 2\r\n\r\n{}";
    const ACCEPTED: &str = "HTTP/1.1 202 Accepted\r\n\r\n";

    #[test]
    fn streams_and_plain_answers_are_understood() {
        let event = format!("event: message\ndata: {{\"result\":{{\"content\":[{{\"text\":\"{WORD}\"}}]}}}}\n\n");
        let stream =
            format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{event}\r\n0\r\n\r\n", event.len());
        let talk = answered([WELCOME, ACCEPTED, &stream]).unwrap();
        assert_eq!(talk.session, "Mcp-Session-Id: s1\r\n");
    }

    #[test]
    fn whoever_answers_something_else_is_out() {
        let wrong = "HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n{\"result\":{}}";
        assert!(answered([WELCOME, ACCEPTED, wrong]).is_err());
        let missing = "HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nnone";
        assert!(answered([WELCOME, ACCEPTED, missing]).err().unwrap().to_string().contains("404"));
    }
}
