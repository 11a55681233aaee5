//! A server at the other end of two pipes: one message a line.

use std::io;
use std::sync::Arc;

use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};

use super::error::EndReason;
use super::link::Link;
use super::outbox::Unsent;
use super::rpc::{Connection, MAX_MESSAGE_BYTES};

const BUFFER_BYTES: usize = 64 * 1024;
/// Of a line that is too long, so much is kept of both ends.
const KEPT_BYTES: usize = 1024;
/// So many lines in a row that are no messages end the connection.
const MAX_MALFORMED_IN_A_ROW: usize = 100;

/// One line, without its end.
#[derive(Debug, PartialEq, Eq)]
enum Line<'a> {
    Whole(&'a [u8]),
    /// More than a message may be: the rest was read and thrown away.
    TooLong {
        head: &'a [u8],
        tail: &'a [u8],
    },
}

struct Lines<R> {
    input: BufReader<R>,
    /// What is known of a line that did not fit the buffer.
    line: Vec<u8>,
    tail: Vec<u8>,
    too_long: bool,
    /// A line that was given from the buffer, and is still in it.
    given: usize,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    fn new(input: R) -> Self {
        let input = BufReader::with_capacity(BUFFER_BYTES, input);
        Self { input, line: Vec::new(), tail: Vec::new(), too_long: false, given: 0 }
    }

    /// The next line, or None at the end. What follows the last line end is no line.
    async fn next(&mut self) -> io::Result<Option<Line<'_>>> {
        self.input.consume(std::mem::take(&mut self.given));
        // Memory that a long line needed is not kept.
        self.line = Vec::new();
        self.tail.clear();
        self.too_long = false;
        loop {
            let chunk = self.input.fill_buf().await?;
            if chunk.is_empty() {
                return Ok(None);
            }
            let end = chunk.iter().position(|&byte| byte == b'\n');
            let part = &chunk[..end.unwrap_or(chunk.len())];
            if let Some(end) = end
                && self.line.is_empty()
            {
                self.given = end + 1;
                return Ok(Some(Line::Whole(&self.input.buffer()[..end])));
            }
            if self.too_long || self.line.len() + part.len() > MAX_MESSAGE_BYTES {
                if !self.too_long {
                    self.too_long = true;
                    let from = self.line.len().saturating_sub(KEPT_BYTES);
                    self.tail.extend_from_slice(&self.line[from..]);
                    self.line.truncate(KEPT_BYTES);
                    self.line.shrink_to_fit();
                }
                self.tail.extend_from_slice(&part[part.len().saturating_sub(KEPT_BYTES)..]);
                self.tail.drain(..self.tail.len().saturating_sub(KEPT_BYTES));
            } else {
                self.line.extend_from_slice(part);
            }
            let used = part.len() + usize::from(end.is_some());
            self.input.consume(used);
            if end.is_some() {
                return Ok(Some(if self.too_long {
                    Line::TooLong { head: &self.line, tail: &self.tail }
                } else {
                    Line::Whole(&self.line)
                }));
            }
        }
    }
}

/// Reads what the server says, until it ends or the connection does.
pub(super) async fn read(connection: Arc<Connection>, input: Box<dyn AsyncRead + Send + Unpin>) {
    let mut lines = Lines::new(input);
    let mut malformed = 0;
    let why = loop {
        let line = tokio::select! {
            line = lines.next() => line,
            () = connection.closed() => return,
        };
        match line {
            Ok(Some(Line::Whole(line))) if line.trim_ascii().is_empty() => {}
            Ok(Some(Line::Whole(line))) => {
                if connection.receive(line, None) {
                    malformed = 0;
                    continue;
                }
                malformed += 1;
                if malformed >= MAX_MALFORMED_IN_A_ROW {
                    break format!("the server wrote {malformed} lines in a row that are not JSON-RPC");
                }
            }
            Ok(Some(Line::TooLong { head, tail })) => connection.receive_oversized(head, tail, None),
            Ok(None) => break "the server closed its output".to_owned(),
            Err(error) => break format!("reading from the server failed: {error}"),
        }
    };
    connection.close(EndReason::Lost(why));
}

/// Writes what the server did not take at once.
pub(super) async fn write(connection: Arc<Connection>) {
    let Link::Lines(outbox) = &connection.link else { return };
    if outbox.drain().await == Unsent::Stalled {
        connection.close(EndReason::Lost("the server does not read its input".into()));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[tokio::test]
    async fn a_line_over_the_bound_is_skipped_without_being_held() {
        let long = MAX_MESSAGE_BYTES + 5;
        let input = [b"a\n{\"id\":1".as_slice(), &vec![b'x'; long], b"end}\nb\ncut"].concat();
        let mut lines = Lines::new(input.as_slice());
        assert_eq!(lines.next().await.unwrap(), Some(Line::Whole(b"a")));
        let Some(Line::TooLong { head, tail }) = lines.next().await.unwrap() else { panic!() };
        assert!(head.starts_with(b"{\"id\":1") && tail.ends_with(b"xend}"));
        assert_eq!((head.len(), tail.len()), (KEPT_BYTES, KEPT_BYTES));
        assert_eq!(lines.next().await.unwrap(), Some(Line::Whole(b"b")));
        assert_eq!(lines.next().await.unwrap(), None);
    }

    #[tokio::test]
    async fn a_line_of_just_the_bound_is_whole() {
        let input = [vec![b'x'; MAX_MESSAGE_BYTES], b"\n".to_vec()].concat();
        let mut lines = Lines::new(input.as_slice());
        assert!(matches!(lines.next().await.unwrap(), Some(Line::Whole(line)) if line.len() == MAX_MESSAGE_BYTES));
    }

    proptest! {
        #[test]
        fn lines_come_out_as_they_went_in(texts in prop::collection::vec("[^\n]{0,40}", 0..20), chunk in 1_usize..9) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(async {
                let (ours, mut theirs) = tokio::io::duplex(chunk);
                let whole = texts.iter().fold(String::new(), |whole, text| whole + text + "\n");
                let writer = tokio::spawn(async move {
                    tokio::io::AsyncWriteExt::write_all(&mut theirs, whole.as_bytes()).await.unwrap();
                });
                let mut lines = Lines::new(ours);
                for text in &texts {
                    assert_eq!(lines.next().await.unwrap(), Some(Line::Whole(text.as_bytes())));
                }
                assert_eq!(lines.next().await.unwrap(), None);
                writer.await.unwrap();
            });
        }
    }
}
