//! The head of an HTTP/1 message: a start line and fields.
//!
//! Folded fields, bare CR or LF, and spaces around a field name are refused. This module does not distinguish requests
//! from responses, except in its error type.

use std::io;

use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt};

use crate::rules::HostError;

const MAX_FIELDS: usize = 128;

/// Reason why a head cannot be used.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum HeadError {
    #[error("the HTTP head is too large")]
    TooLarge,
    #[error("the connection closed before the end of the HTTP head")]
    Closed,
    #[error("cannot read the HTTP head: {0}")]
    Read(io::ErrorKind),
    #[error("malformed HTTP message: {0}")]
    Malformed(&'static str),
    #[error("{0}")]
    Host(HostError),
    #[error("the Host field or the URL of the request does not match the destination")]
    HostMismatch,
    #[error("a proxy cannot forward https:// requests that are sent in plain text")]
    UseConnect,
    #[error("the request target is not an absolute http:// URL")]
    NotForProxy,
}

impl HeadError {
    /// Returns the stable code of this error.
    pub(crate) fn code(&self) -> &'static str {
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

    /// Returns the next step for the guest, if there is one.
    pub(crate) fn hint(&self) -> Option<&'static str> {
        match self {
            Self::UseConnect => Some("open a tunnel with CONNECT HOST:443 and use TLS inside it"),
            Self::NotForProxy => Some("this is a forward proxy: set http_proxy and https_proxy to its address"),
            _ => None,
        }
    }
}

/// A start line and fields without control characters.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) start_line: Vec<u8>,
    pub(crate) fields: Vec<Field>,
}

#[derive(Debug)]
pub(crate) struct Field {
    pub(crate) name: String,
    pub(crate) value: Vec<u8>,
}

impl Field {
    /// Compares the field name, ignoring case.
    pub(crate) fn is_named(&self, name: &str) -> bool {
        self.name.eq_ignore_ascii_case(name)
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        for part in [self.name.as_bytes(), b": ", &self.value, b"\r\n"] {
            out.extend_from_slice(part);
        }
    }
}

impl Head {
    /// Reads up to and including the empty line. Later bytes stay in the reader.
    pub(crate) async fn read<R>(reader: &mut R, limit: usize) -> Result<Self, HeadError>
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

    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, HeadError> {
        let lines = bytes
            .strip_suffix(b"\r\n\r\n")
            .ok_or(HeadError::Malformed("the head does not end with an empty line and CR LF"))?;
        let mut lines = lines.split(|&b| b == b'\n').peekable();
        let mut head = Self { start_line: Vec::new(), fields: Vec::new() };
        while let Some(line) = lines.next() {
            let line = match lines.peek() {
                Some(_) => {
                    line.strip_suffix(b"\r").ok_or(HeadError::Malformed("a line ends with LF instead of CR LF"))?
                }
                None => line,
            };
            if line.iter().any(|&b| b.is_ascii_control() && b != b'\t') {
                return Err(HeadError::Malformed("a line contains a control character"));
            }
            if head.start_line.is_empty() {
                if line.is_empty() {
                    return Err(HeadError::Malformed("the start line is missing"));
                }
                head.start_line = line.to_vec();
            } else if head.fields.len() == MAX_FIELDS {
                return Err(HeadError::TooLarge);
            } else {
                head.fields.push(parse_field(line)?);
            }
        }
        Ok(head)
    }

    /// Returns the values of all fields with this name.
    pub(crate) fn values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
        self.fields.iter().filter(move |field| field.is_named(name)).map(|field| field.value.as_slice())
    }

    /// Writes the head as it was parsed.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.start_line);
        out.extend_from_slice(b"\r\n");
        self.fields.iter().for_each(|field| field.write(out));
        out.extend_from_slice(b"\r\n");
    }

    /// Writes the end-to-end fields: all except Host, framing and hop-by-hop fields (RFC 9110, 7.6.1).
    pub(crate) fn write_end_to_end(&self, out: &mut Vec<u8>) {
        const NOT_FORWARDED: [&str; 9] = [
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
        let connection_options: Vec<&[u8]> =
            self.values("connection").flat_map(|value| value.split(|&b| b == b',')).map(<[u8]>::trim_ascii).collect();
        for field in &self.fields {
            let lower = field.name.to_ascii_lowercase();
            let is_dropped = NOT_FORWARDED.contains(&lower.as_str())
                || lower.starts_with("proxy-")
                // Only the proxy itself may send these.
                || lower.starts_with("x-ringfence-")
                || connection_options.iter().any(|option| option.eq_ignore_ascii_case(field.name.as_bytes()));
            if !is_dropped {
                field.write(out);
            }
        }
    }
}

fn parse_field(line: &[u8]) -> Result<Field, HeadError> {
    if line.starts_with(b" ") || line.starts_with(b"\t") {
        return Err(HeadError::Malformed("a field is folded over several lines"));
    }
    let colon = line.iter().position(|&b| b == b':').ok_or(HeadError::Malformed("a field has no colon"))?;
    let name = parse_token(&line[..colon]).ok_or(HeadError::Malformed("invalid field name"))?;
    Ok(Field { name: name.to_owned(), value: line[colon + 1..].trim_ascii().to_vec() })
}

/// Returns the bytes as text if they are a token (RFC 9110, 5.6.2).
pub(super) fn parse_token(bytes: &[u8]) -> Option<&str> {
    let is_allowed = |b: &u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(b);
    let text = std::str::from_utf8(bytes).ok()?;
    (!bytes.is_empty() && bytes.iter().all(is_allowed)).then_some(text)
}

/// Appends bytes up to and including LF to `into`.
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
    fn only_end_to_end_fields_are_written() {
        let head = Head::parse(
            b"GET / HTTP/1.1\r\nA: 1\r\nconnection: X-Own, close\r\nX-own: 2\r\nProxy-Auth: 3\r\n\
              X-Ringfence-Reason: no\r\nUpgrade: h2c\r\nB:\t2 \r\nTE: trailers\r\n\r\n",
        )
        .unwrap();
        assert_eq!(head.start_line, b"GET / HTTP/1.1");
        assert_eq!(head.values("b").collect::<Vec<_>>(), [b"2"]);
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
    async fn reading_stops_at_empty_line_and_at_limit() {
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
