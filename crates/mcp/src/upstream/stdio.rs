//! The stdio transport: one message per line over two pipes.

use std::io;
use std::sync::Arc;

use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};

use super::connection::Connection;
use super::error::{EndReason, UpstreamError};
use super::large_message_slots::{RECHECK_INTERVAL, SizeLimit};
use super::outbox::SendError;
use super::received::ReceivedMessage;
use super::transport::Transport;

const BUFFER_BYTES: usize = 64 * 1024;
/// Number of bytes that are stored of each end of a line over the limit, to find the id of its call.
const EXCERPT_BYTES: usize = 1024;
/// Number of consecutive invalid lines that ends the connection.
const MAX_MALFORMED_IN_A_ROW: usize = 100;

/// One line, without the line feed.
enum Line<'a> {
    Whole(ReceivedMessage<'a>),
    /// The line is over the limit: the rest was read and discarded.
    TooLong {
        head: &'a [u8],
        tail: &'a [u8],
        error: UpstreamError,
    },
}

struct LineReader<R> {
    input: BufReader<R>,
    /// The start of a line that does not fit the buffer.
    line: Vec<u8>,
    tail: Vec<u8>,
    limit: SizeLimit,
    /// The error of the current line if it is over the limit.
    too_long: Option<UpstreamError>,
    /// Size of the line that was returned last and is still in the buffer.
    lent_bytes: usize,
}

impl<R: AsyncRead + Unpin> LineReader<R> {
    fn new(input: R) -> Self {
        let input = BufReader::with_capacity(BUFFER_BYTES, input);
        Self { input, line: Vec::new(), tail: Vec::new(), limit: SizeLimit::Ordinary, too_long: None, lent_bytes: 0 }
    }

    /// Returns the next line, or None at the end. Bytes after the last line feed are dropped.
    async fn next(&mut self, connection: &Connection) -> io::Result<Option<Line<'_>>> {
        self.input.consume(std::mem::take(&mut self.lent_bytes));
        // Releases the memory of a long line.
        self.line = Vec::new();
        self.tail.clear();
        self.too_long = None;
        loop {
            if self.limit.is_large() && tokio::time::timeout(RECHECK_INTERVAL, self.input.fill_buf()).await.is_err() {
                connection.update_limit(&mut self.limit, self.line.len(), None).await;
                self.check_limit(0);
                continue;
            }
            let chunk = self.input.fill_buf().await?;
            if chunk.is_empty() {
                return Ok(None);
            }
            let end = chunk.iter().position(|&byte| byte == b'\n');
            let length = end.unwrap_or(chunk.len());
            if let Some(end) = end
                && self.line.is_empty()
            {
                self.lent_bytes = end + 1;
                return Ok(Some(Line::Whole(self.input.buffer()[..end].into())));
            }
            if self.too_long.is_none() {
                connection.record_activity();
                connection.update_limit(&mut self.limit, self.line.len() + length, None).await;
                self.check_limit(length);
            }
            self.append(length);
            self.input.consume(length + usize::from(end.is_some()));
            if end.is_some() {
                return Ok(Some(self.finish()));
            }
        }
    }

    /// Starts to discard the current line if `more` bytes would exceed its limit.
    fn check_limit(&mut self, more: usize) {
        if self.line.len() + more <= self.limit.max_bytes() {
            return self.limit.reserve(&mut self.line);
        }
        self.too_long = Some(self.limit.error());
        self.limit.take_slot();
        let from = self.line.len().saturating_sub(EXCERPT_BYTES);
        self.tail.extend_from_slice(&self.line[from..]);
        self.line.truncate(EXCERPT_BYTES);
        self.line.shrink_to_fit();
    }

    /// Appends bytes of the buffer to the line, or to its tail if it is over the limit.
    fn append(&mut self, length: usize) {
        let part = &self.input.buffer()[..length];
        if self.too_long.is_none() {
            return self.line.extend_from_slice(part);
        }
        self.tail.extend_from_slice(&part[length.saturating_sub(EXCERPT_BYTES)..]);
        self.tail.drain(..self.tail.len().saturating_sub(EXCERPT_BYTES));
    }

    fn finish(&mut self) -> Line<'_> {
        if let Some(error) = self.too_long.take() {
            return Line::TooLong { head: &self.line, tail: &self.tail, error };
        }
        let mut line = std::mem::take(&mut self.line);
        let slot = self.limit.take_slot();
        if slot.is_some() {
            line.shrink_to_fit();
        }
        Line::Whole(ReceivedMessage::owned(line, slot))
    }
}

/// Reads messages until the stream or the connection ends.
pub(super) async fn read(connection: Arc<Connection>, input: Box<dyn AsyncRead + Send + Unpin>) {
    let mut lines = LineReader::new(input);
    let mut malformed = 0;
    let error = loop {
        let line = tokio::select! {
            line = lines.next(&connection) => line,
            () = connection.closed() => return,
        };
        match line {
            Ok(Some(Line::Whole(line))) if line.bytes().trim_ascii().is_empty() => {}
            Ok(Some(Line::Whole(line))) => {
                if connection.receive(&line, None) {
                    malformed = 0;
                    continue;
                }
                malformed += 1;
                if malformed >= MAX_MALFORMED_IN_A_ROW {
                    break format!("the server wrote {malformed} consecutive lines that are not JSON-RPC");
                }
            }
            Ok(Some(Line::TooLong { head, tail, error })) => connection.receive_oversized(head, tail, None, error),
            Ok(None) => break "the server closed its output".to_owned(),
            Err(error) => break format!("reading from the server failed: {error}"),
        }
    };
    connection.close(EndReason::Lost(error));
}

/// Writes the messages that the server did not accept at once.
pub(super) async fn write(connection: Arc<Connection>) {
    let Transport::Stdio(outbox) = &connection.transport else { return };
    if outbox.drain().await == SendError::Stalled {
        connection.close(EndReason::Lost("the server does not read its input".into()));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokio::sync::mpsc;

    use super::*;
    use crate::upstream::connection::{ClientSide, MAX_MESSAGE_BYTES};
    use crate::upstream::large_message_slots::Slots;
    use crate::upstream::outbox::Outbox;
    use crate::upstream::tests::scripted_server::client_identity;

    fn connection() -> Arc<Connection> {
        let link = Transport::Stdio(Outbox::new(Box::new(tokio::io::sink())));
        Connection::new(
            link,
            ClientSide { client: client_identity(), unrelated: mpsc::channel(1).0, slots: Slots::new(1) },
        )
    }

    async fn next_line<R: AsyncRead + Unpin>(lines: &mut LineReader<R>, connection: &Connection) -> Option<Vec<u8>> {
        match lines.next(connection).await.unwrap() {
            Some(Line::Whole(line)) => Some(line.bytes().to_vec()),
            Some(Line::TooLong { .. }) => panic!("the line is too long"),
            None => None,
        }
    }

    #[tokio::test]
    async fn line_over_limit_is_skipped_without_being_stored() {
        let long = MAX_MESSAGE_BYTES + 5;
        let input = [b"a\n{\"id\":1".as_slice(), &vec![b'x'; long], b"end}\nb\ncut"].concat();
        let (mut lines, connection) = (LineReader::new(input.as_slice()), connection());
        assert_eq!(next_line(&mut lines, &connection).await.unwrap(), b"a");
        let Some(Line::TooLong { head, tail, error }) = lines.next(&connection).await.unwrap() else { panic!() };
        assert!(head.starts_with(b"{\"id\":1") && tail.ends_with(b"xend}"));
        assert_eq!((head.len(), tail.len(), error), (EXCERPT_BYTES, EXCERPT_BYTES, UpstreamError::TooLarge));
        assert_eq!(next_line(&mut lines, &connection).await.unwrap(), b"b");
        assert_eq!(next_line(&mut lines, &connection).await, None);
    }

    #[tokio::test]
    async fn line_of_maximum_size_is_returned() {
        let input = [vec![b'x'; MAX_MESSAGE_BYTES], b"\n".to_vec()].concat();
        let line = next_line(&mut LineReader::new(input.as_slice()), &connection()).await;
        assert_eq!(line.unwrap().len(), MAX_MESSAGE_BYTES);
    }

    proptest! {
        #[test]
        fn lines_are_returned_unchanged(texts in prop::collection::vec("[^\n]{0,40}", 0..20), chunk in 1_usize..9) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(async {
                let (ours, mut theirs) = tokio::io::duplex(chunk);
                let all = texts.iter().fold(String::new(), |all, text| all + text + "\n");
                let writer = tokio::spawn(async move {
                    tokio::io::AsyncWriteExt::write_all(&mut theirs, all.as_bytes()).await.unwrap();
                });
                let (mut lines, connection) = (LineReader::new(ours), connection());
                for text in &texts {
                    assert_eq!(next_line(&mut lines, &connection).await.unwrap(), text.as_bytes());
                }
                assert_eq!(next_line(&mut lines, &connection).await, None);
                writer.await.unwrap();
            });
        }
    }
}
