//! The framing of a message body, and copying a body exactly up to its end.
//!
//! Chunks are rewritten from the parsed sizes, without extensions and trailers, so that the next reader sees the same
//! body. Bodies are streamed, never buffered as a whole.

use std::io;

use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncWrite, AsyncWriteExt};

use super::head::{Head, HeadError, read_line};
use crate::relay::IdleTimer;

const MAX_CHUNK_LINE_BYTES: usize = 256;
const MAX_TRAILER_BYTES: usize = 16 * 1024;

/// The way in which a message states the end of its body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BodyFraming {
    Length(u64),
    Chunked,
    UntilClose,
}

/// Reason why a body was not copied up to its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyError {
    #[error("the body is malformed")]
    Malformed,
    #[error("cannot read the body")]
    Read(#[source] io::Error),
    #[error("cannot forward the body")]
    Write(#[source] io::Error),
}

impl BodyFraming {
    /// Returns the framing that a head states, if any.
    pub(crate) fn from_head(head: &Head) -> Result<Option<Self>, HeadError> {
        let mut codings = head.values("transfer-encoding");
        let coding = codings.next();
        if codings.next().is_some() || coding.is_some_and(|c| !c.eq_ignore_ascii_case(b"chunked")) {
            return Err(HeadError::Malformed("the Transfer-Encoding is not `chunked`"));
        }
        let mut length = None;
        for value in head.values("content-length") {
            let value = std::str::from_utf8(value)
                .ok()
                .filter(|text| text.bytes().all(|b| b.is_ascii_digit()))
                .and_then(|text| text.parse::<u64>().ok())
                .ok_or(HeadError::Malformed("the Content-Length is not a number"))?;
            if length.is_some_and(|length| length != value) {
                return Err(HeadError::Malformed("the Content-Length fields differ"));
            }
            length = Some(value);
        }
        match (coding, length) {
            (Some(_), Some(_)) => Err(HeadError::Malformed("both Transfer-Encoding and Content-Length are present")),
            (Some(_), None) => Ok(Some(Self::Chunked)),
            (None, length) => Ok(length.map(Self::Length)),
        }
    }

    /// Writes the field that states this framing.
    pub(crate) fn write_field(self, out: &mut Vec<u8>) {
        match self {
            Self::Length(length) => {
                out.extend_from_slice(format!("Content-Length: {length}\r\n").as_bytes());
            }
            Self::Chunked => out.extend_from_slice(b"Transfer-Encoding: chunked\r\n"),
            Self::UntilClose => {}
        }
    }

    /// Copies the body and leaves the bytes after it unread.
    pub(crate) async fn copy<R, W>(self, from: &mut R, to: &mut W, idle: &IdleTimer) -> Result<(), BodyError>
    where
        R: AsyncBufRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        match self {
            Self::Length(length) => copy_exactly(length, from, to, idle).await,
            Self::Chunked => copy_chunks(from, to, idle).await,
            Self::UntilClose => match copy_exactly(u64::MAX, from, to, idle).await {
                Err(BodyError::Read(error)) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(()),
                result => result,
            },
        }
    }
}

async fn copy_exactly<R, W>(mut remaining: u64, from: &mut R, to: &mut W, idle: &IdleTimer) -> Result<(), BodyError>
where
    R: AsyncBufRead + Unpin,
    W: AsyncWrite + Unpin,
{
    while remaining > 0 {
        let ready = from.fill_buf().await.map_err(BodyError::Read)?;
        if ready.is_empty() {
            return Err(BodyError::Read(io::ErrorKind::UnexpectedEof.into()));
        }
        let count = usize::try_from(remaining).map_or(ready.len(), |remaining| remaining.min(ready.len()));
        to.write_all(&ready[..count]).await.map_err(BodyError::Write)?;
        from.consume(count);
        remaining -= count as u64;
        idle.touch();
    }
    Ok(())
}

async fn copy_chunks<R, W>(from: &mut R, to: &mut W, idle: &IdleTimer) -> Result<(), BodyError>
where
    R: AsyncBufRead + Unpin,
    W: AsyncWrite + Unpin,
{
    loop {
        let size = parse_chunk_size(&read_crlf_line(from, MAX_CHUNK_LINE_BYTES).await?).ok_or(BodyError::Malformed)?;
        if size == 0 {
            break;
        }
        let head = format!("{size:x}\r\n");
        to.write_all(head.as_bytes()).await.map_err(BodyError::Write)?;
        copy_exactly(size, from, to, idle).await?;
        if !read_crlf_line(from, 2).await?.is_empty() {
            return Err(BodyError::Malformed);
        }
        to.write_all(b"\r\n").await.map_err(BodyError::Write)?;
    }
    let mut remaining = MAX_TRAILER_BYTES;
    loop {
        let trailer = read_crlf_line(from, remaining).await?;
        if trailer.is_empty() {
            break;
        }
        remaining = remaining.saturating_sub(trailer.len() + 2);
    }
    to.write_all(b"0\r\n\r\n").await.map_err(BodyError::Write)
}

/// Reads a line that ends with CR LF and has no other control characters except tabs; returns it without CR LF.
async fn read_crlf_line<R: AsyncBufRead + Unpin>(from: &mut R, limit: usize) -> Result<Vec<u8>, BodyError> {
    let mut line = Vec::new();
    match read_line(from, &mut line, limit).await {
        Err(HeadError::Read(kind)) => return Err(BodyError::Read(kind.into())),
        Err(_) => return Err(BodyError::Malformed),
        Ok(()) => {}
    }
    if !line.ends_with(b"\r\n") {
        return Err(BodyError::Malformed);
    }
    line.truncate(line.len() - 2);
    if line.iter().any(|&b| b.is_ascii_control() && b != b'\t') {
        return Err(BodyError::Malformed);
    }
    Ok(line)
}

fn parse_chunk_size(line: &[u8]) -> Option<u64> {
    let digits = line.split(|&b| b == b';').next()?.trim_ascii_end();
    // 15 digits cannot overflow, neither here nor in the next reader.
    if digits.is_empty() || digits.len() > 15 || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn framing(fields: &str) -> Result<Option<BodyFraming>, HeadError> {
        let head = Head::parse(format!("GET / HTTP/1.1\r\n{fields}\r\n\r\n").as_bytes()).unwrap();
        BodyFraming::from_head(&head)
    }

    #[test]
    fn ambiguous_framing_is_refused() {
        for (fields, expected) in [
            ("A: 1", None),
            ("Content-Length: 5", Some(BodyFraming::Length(5))),
            ("Content-Length: 5\r\ncontent-length: 5", Some(BodyFraming::Length(5))),
            ("Transfer-Encoding: Chunked", Some(BodyFraming::Chunked)),
        ] {
            assert_eq!(framing(fields).unwrap(), expected, "{fields}");
        }
        for fields in [
            "Content-Length: 5\r\nContent-Length: 6",
            "Content-Length: 5\r\nTransfer-Encoding: chunked",
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
            "Transfer-Encoding: gzip, chunked",
            "Transfer-Encoding: xchunked",
            "Transfer-Encoding:",
            "Content-Length: +5",
            "Content-Length: -1",
            "Content-Length: 0x5",
            "Content-Length: 5, 5",
            "Content-Length: ",
            "Content-Length: 99999999999999999999",
        ] {
            assert!(framing(fields).is_err(), "{fields}");
        }
    }

    async fn copied(body: BodyFraming, mut input: &[u8]) -> (bool, String, String) {
        let mut out = Vec::new();
        let idle = IdleTimer::new(Duration::from_secs(1));
        let result = body.copy(&mut input, &mut out, &idle).await;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (result.is_ok(), text(&out), text(input))
    }

    #[tokio::test]
    async fn copy_ends_with_the_body() {
        let ok = |out: &str, rest: &str| (true, out.to_owned(), rest.to_owned());
        assert_eq!(copied(BodyFraming::Length(3), b"abcGET").await, ok("abc", "GET"));
        assert_eq!(copied(BodyFraming::UntilClose, b"abc").await, ok("abc", ""));
        assert_eq!(
            copied(BodyFraming::Chunked, b"03;x=\"y\"\r\nabc\r\n0\r\nTrailer: 1\r\n\r\nGET").await,
            ok("3\r\nabc\r\n0\r\n\r\n", "GET")
        );
    }

    #[tokio::test]
    async fn copies_of_malformed_bodies_have_no_end() {
        assert!(!copied(BodyFraming::Length(3), b"ab").await.0);
        for input in [
            "3\nabc\r\n0\r\n\r\n",
            "3\r\nabcd\r\n0\r\n\r\n",
            "0x3\r\nabc\r\n0\r\n\r\n",
            "-1\r\n\r\n",
            "\r\n\r\n",
            "ffffffffffffffff\r\nabc",
            "0000000000000003\r\nabc\r\n0\r\n\r\n",
            "3;a\rb\r\nabc\r\n0\r\n\r\n",
            "0\r\nA: 1\n\r\n",
            "0\r\n",
        ] {
            let (ended, out, _) = copied(BodyFraming::Chunked, input.as_bytes()).await;
            assert!(!ended && !out.contains("0\r\n\r\n"), "{input:?}");
        }
    }
}
