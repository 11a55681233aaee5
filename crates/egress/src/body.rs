//! Where a message's body ends, and copying it exactly that far.
//!
//! Chunks are written anew from what was understood, without extensions and trailers, so that the
//! next reader cannot understand something else. Bodies are streamed, never held.

use std::io;

use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncWrite, AsyncWriteExt};

use super::head::{Head, HeadError, read_line};
use super::relay::Idle;

const MAX_CHUNK_LINE: usize = 256;
const MAX_TRAILERS: usize = 16 * 1024;

/// How the end of a body is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Body {
    Length(u64),
    Chunked,
    UntilClose,
}

/// Why a body was not copied to its end.
#[derive(Debug, thiserror::Error)]
pub(super) enum BodyError {
    #[error("the body is malformed")]
    Malformed,
    #[error("the body could not be read")]
    Read(#[source] io::Error),
    #[error("the body could not be passed on")]
    Write(#[source] io::Error),
}

impl Body {
    /// Reads the framing of a head, if it states one.
    pub(super) fn of(head: &Head) -> Result<Option<Self>, HeadError> {
        let mut codings = head.all("transfer-encoding");
        let coding = codings.next();
        if codings.next().is_some() || coding.is_some_and(|c| !c.eq_ignore_ascii_case(b"chunked")) {
            return Err(HeadError::Malformed("a Transfer-Encoding besides chunked"));
        }
        let mut length = None;
        for value in head.all("content-length") {
            let value = std::str::from_utf8(value)
                .ok()
                .filter(|text| text.bytes().all(|b| b.is_ascii_digit()))
                .and_then(|text| text.parse::<u64>().ok())
                .ok_or(HeadError::Malformed("a Content-Length that is no number"))?;
            if length.is_some_and(|length| length != value) {
                return Err(HeadError::Malformed("two different Content-Lengths"));
            }
            length = Some(value);
        }
        match (coding, length) {
            (Some(_), Some(_)) => Err(HeadError::Malformed("both Transfer-Encoding and Content-Length")),
            (Some(_), None) => Ok(Some(Self::Chunked)),
            (None, length) => Ok(length.map(Self::Length)),
        }
    }

    pub(super) fn write_field(self, out: &mut Vec<u8>) {
        match self {
            Self::Length(length) => {
                out.extend_from_slice(format!("Content-Length: {length}\r\n").as_bytes());
            }
            Self::Chunked => out.extend_from_slice(b"Transfer-Encoding: chunked\r\n"),
            Self::UntilClose => {}
        }
    }

    /// Copies the body, and leaves what follows it unread.
    pub(super) async fn copy<R, W>(self, from: &mut R, to: &mut W, idle: &Idle) -> Result<(), BodyError>
    where
        R: AsyncBufRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        match self {
            Self::Length(length) => copy_exactly(length, from, to, idle).await,
            Self::Chunked => copy_chunks(from, to, idle).await,
            Self::UntilClose => match copy_exactly(u64::MAX, from, to, idle).await {
                Err(BodyError::Read(error)) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(()),
                other => other,
            },
        }
    }
}

async fn copy_exactly<R, W>(mut left: u64, from: &mut R, to: &mut W, idle: &Idle) -> Result<(), BodyError>
where
    R: AsyncBufRead + Unpin,
    W: AsyncWrite + Unpin,
{
    while left > 0 {
        let ready = from.fill_buf().await.map_err(BodyError::Read)?;
        if ready.is_empty() {
            return Err(BodyError::Read(io::ErrorKind::UnexpectedEof.into()));
        }
        let count = usize::try_from(left).map_or(ready.len(), |left| left.min(ready.len()));
        to.write_all(&ready[..count]).await.map_err(BodyError::Write)?;
        from.consume(count);
        left -= count as u64;
        idle.touch();
    }
    Ok(())
}

async fn copy_chunks<R, W>(from: &mut R, to: &mut W, idle: &Idle) -> Result<(), BodyError>
where
    R: AsyncBufRead + Unpin,
    W: AsyncWrite + Unpin,
{
    loop {
        let size = chunk_size(&line(from, MAX_CHUNK_LINE).await?).ok_or(BodyError::Malformed)?;
        if size == 0 {
            break;
        }
        let head = format!("{size:x}\r\n");
        to.write_all(head.as_bytes()).await.map_err(BodyError::Write)?;
        copy_exactly(size, from, to, idle).await?;
        if !line(from, 2).await?.is_empty() {
            return Err(BodyError::Malformed);
        }
        to.write_all(b"\r\n").await.map_err(BodyError::Write)?;
    }
    let mut left = MAX_TRAILERS;
    loop {
        let trailer = line(from, left).await?;
        if trailer.is_empty() {
            break;
        }
        left = left.saturating_sub(trailer.len() + 2);
    }
    to.write_all(b"0\r\n\r\n").await.map_err(BodyError::Write)
}

/// Reads a line that ends in CR LF and has no other control characters.
async fn line<R: AsyncBufRead + Unpin>(from: &mut R, limit: usize) -> Result<Vec<u8>, BodyError> {
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

fn chunk_size(line: &[u8]) -> Option<u64> {
    let digits = line.split(|&b| b == b';').next()?.trim_ascii_end();
    // 15 digits stay far from overflow, also in the next reader
    if digits.is_empty() || digits.len() > 15 || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn framing(fields: &str) -> Result<Option<Body>, HeadError> {
        let head = Head::parse(format!("GET / HTTP/1.1\r\n{fields}\r\n\r\n").as_bytes()).unwrap();
        Body::of(&head)
    }

    #[test]
    fn framing_is_unambiguous() {
        for (fields, expected) in [
            ("A: 1", None),
            ("Content-Length: 5", Some(Body::Length(5))),
            ("Content-Length: 5\r\ncontent-length: 5", Some(Body::Length(5))),
            ("Transfer-Encoding: Chunked", Some(Body::Chunked)),
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

    async fn copied(body: Body, mut input: &[u8]) -> (bool, String, String) {
        let mut out = Vec::new();
        let idle = Idle::new(Duration::from_secs(1));
        let result = body.copy(&mut input, &mut out, &idle).await;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (result.is_ok(), text(&out), text(input))
    }

    #[tokio::test]
    async fn copies_exactly_one_body() {
        let ok = |out: &str, rest: &str| (true, out.to_owned(), rest.to_owned());
        assert_eq!(copied(Body::Length(3), b"abcGET").await, ok("abc", "GET"));
        assert_eq!(copied(Body::UntilClose, b"abc").await, ok("abc", ""));
        assert_eq!(
            copied(Body::Chunked, b"03;x=\"y\"\r\nabc\r\n0\r\nTrailer: 1\r\n\r\nGET").await,
            ok("3\r\nabc\r\n0\r\n\r\n", "GET")
        );
    }

    #[tokio::test]
    async fn malformed_bodies_are_not_ended() {
        assert!(!copied(Body::Length(3), b"ab").await.0);
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
            let (ended, out, _) = copied(Body::Chunked, input.as_bytes()).await;
            assert!(!ended && !out.contains("0\r\n\r\n"), "{input:?}");
        }
    }
}
