//! Responses of the mirror, and how they are written.

use std::fmt::Write as _;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::watch;
use tokio::time::timeout;

use super::downloads::Progress;
use super::error::MirrorError;
use super::indexes::read_part;

/// Bytes of a file that are in memory for one connection.
const CHUNK_BYTES: u64 = 128 << 10;
/// Number of bytes at the end of a file that are sent only after the hash of the file was checked.
const SENT_AFTER_CHECK_BYTES: u64 = 64 << 10;
/// Maximum time for the guest to accept a chunk.
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);

/// A 304 has no body, and no `Content-Length`, because that would be the length of the document.
pub(super) const NOT_MODIFIED: &str = "304 Not Modified";

/// The content of a response.
#[derive(Debug)]
pub(super) enum Body {
    Bytes(Vec<u8>),
    /// A part of a complete file.
    File(Arc<File>, Range<u64>),
    /// A file that is being downloaded, with its length.
    Download(watch::Receiver<Progress>, Arc<File>, u64),
}

impl Body {
    fn length(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::File(_, range) => range.end - range.start,
            Self::Download(_, _, length) => *length,
        }
    }
}

#[derive(Debug)]
pub(super) struct Response {
    pub(super) status: &'static str,
    pub(super) content_type: &'static str,
    /// Further fields. The mirror writes their values, so they need no escaping.
    pub(super) fields: Vec<(&'static str, String)>,
    pub(super) body: Body,
}

/// Whether the body of a response is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SendBody {
    Yes,
    /// The request is HEAD.
    No,
}

impl Response {
    /// A response with a text for a person.
    pub(super) fn text(status: &'static str, code: &'static str, text: &str) -> Self {
        Self {
            status,
            content_type: "text/plain; charset=utf-8",
            fields: vec![("X-Ringfence-Reason", code.into())],
            body: Body::Bytes(format!("ringfence: {text}\n").into_bytes()),
        }
    }

    pub(super) fn error(error: &MirrorError) -> Self {
        let mut response = Self::text(error.status(), error.code(), &error.to_string());
        if *error == MirrorError::Budget {
            response.fields.push(("Retry-After", "10".into()));
        }
        response
    }

    pub(super) fn ok(content_type: &'static str, body: Vec<u8>) -> Self {
        Self { status: "200 OK", content_type, fields: Vec::new(), body: Body::Bytes(body) }
    }

    /// Writes the response. An error means that the connection cannot be used any more.
    pub(super) async fn write<W>(self, to_guest: &mut W, send_body: SendBody, connection: &str) -> io::Result<()>
    where
        W: AsyncWrite + Unpin,
    {
        let mut head = format!("HTTP/1.1 {}\r\n", self.status);
        if self.status != NOT_MODIFIED {
            let _ = write!(head, "Content-Length: {}\r\n", self.body.length());
        }
        if !self.content_type.is_empty() {
            let _ = write!(head, "Content-Type: {}\r\n", self.content_type);
        }
        for (name, value) in &self.fields {
            let _ = write!(head, "{name}: {value}\r\n");
        }
        let _ = write!(head, "Connection: {connection}\r\n\r\n");
        let mut first = head.into_bytes();
        if send_body == SendBody::No {
            return write(to_guest, &first).await;
        }
        match self.body {
            Body::Bytes(bytes) => {
                first.extend_from_slice(&bytes);
                drop(bytes);
                write(to_guest, &first).await
            }
            Body::File(file, range) => {
                let mut at = range.start;
                while at < range.end {
                    let end = range.end.min(at + CHUNK_BYTES);
                    let chunk = read(&file, at..end).await?;
                    first.extend_from_slice(&chunk);
                    write(to_guest, &std::mem::take(&mut first)).await?;
                    at = end;
                }
                write(to_guest, &first).await
            }
            Body::Download(progress, file, length) => {
                write(to_guest, &first).await?;
                write_download(to_guest, progress, &file, length).await
            }
        }
    }
}

/// Forwards a file while it is downloaded. If the download fails, the guest receives less than the stated length.
async fn write_download<W>(
    to_guest: &mut W,
    mut progress: watch::Receiver<Progress>,
    file: &Arc<File>,
    length: u64,
) -> io::Result<()>
where
    W: AsyncWrite + Unpin,
{
    let mut at = 0;
    loop {
        let now = progress.borrow_and_update().clone();
        let limit = match now {
            Progress::Waiting => 0,
            Progress::Running { written, .. } => written.min(length.saturating_sub(SENT_AFTER_CHECK_BYTES)),
            Progress::Complete => length,
            Progress::Failed(_) => return Err(io::ErrorKind::ConnectionAborted.into()),
        };
        while at < limit {
            let end = limit.min(at + CHUNK_BYTES);
            write(to_guest, &read(file, at..end).await?).await?;
            at = end;
        }
        if at == length {
            return Ok(());
        }
        // The download has a deadline, so this wait has one too.
        progress.changed().await.map_err(|_| io::ErrorKind::ConnectionAborted)?;
    }
}

async fn read(file: &Arc<File>, range: Range<u64>) -> io::Result<Vec<u8>> {
    let file = Arc::clone(file);
    tokio::task::spawn_blocking(move || read_part(&file, range)).await.map_err(io::Error::other)?
}

async fn write<W: AsyncWrite + Unpin>(to_guest: &mut W, bytes: &[u8]) -> io::Result<()> {
    timeout(WRITE_TIMEOUT, to_guest.write_all(bytes)).await.map_err(|_| io::ErrorKind::TimedOut)?
}
