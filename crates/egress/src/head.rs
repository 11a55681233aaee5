//! The head of an HTTP/1 message: a start line and fields.
//!
//! Stricter than the standard asks, since a head that two parsers read differently is how requests
//! are smuggled: no folding, no bare CR or LF, no space around a field's name. It does not know
//! requests from answers, apart from errors.

use std::io;

use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt};

use super::host::HostError;

const MAX_FIELDS: usize = 128;

/// Why a head cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum HeadError {
    #[error("the head is too large")]
    TooLarge,
    #[error("the connection ended within the head")]
    Closed,
    #[error("the head could not be read: {0}")]
    Read(io::ErrorKind),
    #[error("malformed head: {0}")]
    Malformed(&'static str),
    #[error("{0}")]
    Host(HostError),
    #[error("the Host field differs from the request's target")]
    HostMismatch,
    #[error("https cannot be requested from a proxy in plain text")]
    UseConnect,
    #[error("the request's target is not an http:// address")]
    NotForProxy,
}

impl HeadError {
    pub(super) fn code(&self) -> &'static str {
        match self {
            Self::TooLarge => "head-too-large",
            Self::Closed | Self::Read(_) => "head-incomplete",
            Self::Malformed(_) => "bad-request",
            Self::Host(_) => "bad-host",
            Self::HostMismatch => "host-mismatch",
            Self::UseConnect => "use-connect",
            Self::NotForProxy => "not-for-proxy",
        }
    }

    pub(super) fn hint(&self) -> Option<&'static str> {
        match self {
            Self::UseConnect => Some("open a tunnel with CONNECT host:443 and speak TLS inside it"),
            Self::NotForProxy => Some("this is a forward proxy: set it as http_proxy, https_proxy"),
            _ => None,
        }
    }
}

/// A start line and fields, free of control characters.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) start: Vec<u8>,
    pub(super) fields: Vec<Field>,
}

#[derive(Debug)]
pub(super) struct Field {
    pub(super) name: String,
    pub(super) value: Vec<u8>,
}

impl Field {
    pub(super) fn is(&self, name: &str) -> bool {
        self.name.eq_ignore_ascii_case(name)
    }
}

impl Head {
    /// Reads up to and including the empty line, and not a byte further.
    pub(super) async fn read<R>(reader: &mut R, limit: usize) -> Result<Self, HeadError>
    where
        R: AsyncBufRead + Unpin,
    {
        let mut bytes = Vec::new();
        loop {
            let start = bytes.len();
            read_line(reader, &mut bytes, limit - start).await?;
            if matches!(&bytes[start..], b"\r\n" | b"\n") {
                return Self::parse(&bytes);
            }
        }
    }

    pub(super) fn parse(bytes: &[u8]) -> Result<Self, HeadError> {
        let lines = bytes.strip_suffix(b"\r\n\r\n").ok_or(HeadError::Malformed("no empty line ended by CR LF"))?;
        let mut lines = lines.split(|&b| b == b'\n').peekable();
        let mut head = Self { start: Vec::new(), fields: Vec::new() };
        while let Some(line) = lines.next() {
            let line = match lines.peek() {
                Some(_) => line.strip_suffix(b"\r").ok_or(HeadError::Malformed("a line ended by LF alone"))?,
                None => line,
            };
            if line.iter().any(|&b| b.is_ascii_control() && b != b'\t') {
                return Err(HeadError::Malformed("a control character"));
            }
            if head.start.is_empty() {
                if line.is_empty() {
                    return Err(HeadError::Malformed("no start line"));
                }
                head.start = line.to_vec();
            } else if head.fields.len() == MAX_FIELDS {
                return Err(HeadError::TooLarge);
            } else {
                head.fields.push(parse_field(line)?);
            }
        }
        Ok(head)
    }

    /// The values of all fields with a name.
    pub(super) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
        self.fields.iter().filter(move |field| field.is(name)).map(|field| field.value.as_slice())
    }

    /// Writes the fields that concern both ends, leaving out framing, Host and what belongs to
    /// this connection alone (RFC 9110, 7.6.1).
    pub(super) fn write_end_to_end(&self, out: &mut Vec<u8>) {
        const OWN: [&str; 9] = [
            "connection",
            "keep-alive",
            "te",
            "trailer",
            "transfer-encoding",
            "content-length",
            "upgrade",
            "http2-settings",
            "host",
        ];
        let named: Vec<&[u8]> =
            self.all("connection").flat_map(|value| value.split(|&b| b == b',')).map(<[u8]>::trim_ascii).collect();
        for Field { name, value } in &self.fields {
            let lower = name.to_ascii_lowercase();
            let dropped = OWN.contains(&lower.as_str())
                || lower.starts_with("proxy-")
                // only the proxy itself may speak in its name
                || lower.starts_with("x-ringfence-")
                || named.iter().any(|n| n.eq_ignore_ascii_case(name.as_bytes()));
            if !dropped {
                for part in [name.as_bytes(), b": ", value, b"\r\n"] {
                    out.extend_from_slice(part);
                }
            }
        }
    }
}

fn parse_field(line: &[u8]) -> Result<Field, HeadError> {
    if line.starts_with(b" ") || line.starts_with(b"\t") {
        return Err(HeadError::Malformed("a folded field"));
    }
    let colon = line.iter().position(|&b| b == b':').ok_or(HeadError::Malformed("a field without a colon"))?;
    let name = token(&line[..colon]).ok_or(HeadError::Malformed("a field's name"))?;
    Ok(Field { name: name.to_owned(), value: line[colon + 1..].trim_ascii().to_vec() })
}

/// The bytes as a token (RFC 9110, 5.6.2).
pub(super) fn token(bytes: &[u8]) -> Option<&str> {
    let allowed = |b: &u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(b);
    let text = std::str::from_utf8(bytes).ok()?;
    (!bytes.is_empty() && bytes.iter().all(allowed)).then_some(text)
}

/// Appends bytes up to and including LF.
pub(super) async fn read_line<R>(reader: &mut R, into: &mut Vec<u8>, limit: usize) -> Result<(), HeadError>
where
    R: AsyncBufRead + Unpin,
{
    let count =
        reader.take(limit as u64).read_until(b'\n', into).await.map_err(|error| HeadError::Read(error.kind()))?;
    if into.ends_with(b"\n") && count > 0 {
        return Ok(());
    }
    Err(if count == limit { HeadError::TooLarge } else { HeadError::Closed })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields() {
        let head = Head::parse(
            b"GET / HTTP/1.1\r\nA: 1\r\nconnection: X-Own, close\r\nX-own: 2\r\nProxy-Auth: 3\r\n\
              X-Ringfence-Reason: no\r\nUpgrade: h2c\r\nB:\t2 \r\nTE: trailers\r\n\r\n",
        )
        .unwrap();
        assert_eq!(head.start, b"GET / HTTP/1.1");
        assert_eq!(head.all("b").collect::<Vec<_>>(), [b"2"]);
        let mut out = Vec::new();
        head.write_end_to_end(&mut out);
        assert_eq!(out, b"A: 1\r\nB: 2\r\n");
    }

    #[test]
    fn ambiguous_heads_are_refused() {
        for head in [
            "GET / HTTP/1.1\r\nA: 1\r\n B: 2\r\n\r\n",
            "GET / HTTP/1.1\r\nA: 1\nB: 2\r\n\r\n",
            "GET / HTTP/1.1\r\nA: 1\rB: 2\r\n\r\n",
            "GET / HTTP/1.1\r\nA : 1\r\n\r\n",
            "GET / HTTP/1.1\r\nA: 1\0\r\n\r\n",
            "GET / HTTP/1.1\r\nA\r\n\r\n",
            "GET / HTTP/1.1\r\n: 1\r\n\r\n",
            "GET / HTTP/1.1\r\nA: 1\r\n\n",
            "GET / HTTP/1.1\n\n",
            "\r\nGET / HTTP/1.1\r\n\r\n",
        ] {
            let result = Head::parse(head.as_bytes());
            assert!(matches!(result, Err(HeadError::Malformed(_))), "{head:?}");
        }
    }

    #[tokio::test]
    async fn reading_stops_at_the_empty_line_and_at_the_limit() {
        let mut input: &[u8] = b"GET / HTTP/1.1\r\nA: 1\r\n\r\nrest";
        Head::read(&mut input, 64).await.unwrap();
        assert_eq!(input, b"rest");
        let mut input: &[u8] = b"GET / HTTP/1.1\r\nA: 1\r\n\r\n";
        let result = Head::read(&mut input, 23).await;
        assert!(matches!(result, Err(HeadError::TooLarge)));
        let mut input: &[u8] = b"GET / HTTP/1.1\r\nA: 1\r\n";
        let result = Head::read(&mut input, 64).await;
        assert!(matches!(result, Err(HeadError::Closed)));
    }
}
