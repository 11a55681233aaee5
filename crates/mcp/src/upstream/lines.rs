//! A server at the other end of two pipes: one message a line.

use std::io;
use std::sync::Arc;

use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};

use super::error::{EndReason, UpstreamError};
use super::large_message_slots::{GLANCE, Room};
use super::link::Link;
use super::outbox::Unsent;
use super::raw::Received;
use super::rpc::Connection;

const BUFFER_BYTES: usize = 64 * 1024;
/// Of a line that is too long, so much is kept of both ends.
const KEPT_BYTES: usize = 1024;
/// So many lines in a row that are no messages end the connection.
const MAX_MALFORMED_IN_A_ROW: usize = 100;

/// One line, without its end.
enum Line<'a> {
    Whole(Received<'a>),
    /// More than it may be: the rest was read and thrown away.
    TooLong {
        head: &'a [u8],
        tail: &'a [u8],
        why: UpstreamError,
    },
}

struct Lines<R> {
    input: BufReader<R>,
    /// What is known of a line that did not fit the buffer.
    line: Vec<u8>,
    tail: Vec<u8>,
    room: Room,
    /// Why the line is not kept any more.
    too_long: Option<UpstreamError>,
    /// A line that was given from the buffer, and is still in it.
    given: usize,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    fn new(input: R) -> Self {
        let input = BufReader::with_capacity(BUFFER_BYTES, input);
        Self { input, line: Vec::new(), tail: Vec::new(), room: Room::Ordinary, too_long: None, given: 0 }
    }

    /// The next line, or None at the end. What follows the last line end is no line.
    async fn next(&mut self, connection: &Connection) -> io::Result<Option<Line<'_>>> {
        self.input.consume(std::mem::take(&mut self.given));
        // Memory that a long line needed is not kept.
        self.line = Vec::new();
        self.tail.clear();
        self.too_long = None;
        loop {
            if self.room.is_large() && tokio::time::timeout(GLANCE, self.input.fill_buf()).await.is_err() {
                connection.make_room(&mut self.room, self.line.len(), None).await;
                self.fit(0);
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
                self.given = end + 1;
                return Ok(Some(Line::Whole(self.input.buffer()[..end].into())));
            }
            if self.too_long.is_none() {
                connection.heard();
                connection.make_room(&mut self.room, self.line.len() + length, None).await;
                self.fit(length);
            }
            self.keep(length);
            self.input.consume(length + usize::from(end.is_some()));
            if end.is_some() {
                return Ok(Some(self.finish()));
            }
        }
    }

    /// Gives a line up that is longer, with so much more, than there is room for.
    fn fit(&mut self, more: usize) {
        if self.line.len() + more <= self.room.limit() {
            return self.room.prepare(&mut self.line);
        }
        self.too_long = Some(self.room.excess());
        self.room.leave();
        let from = self.line.len().saturating_sub(KEPT_BYTES);
        self.tail.extend_from_slice(&self.line[from..]);
        self.line.truncate(KEPT_BYTES);
        self.line.shrink_to_fit();
    }

    /// Takes so much from the buffer to the line.
    fn keep(&mut self, length: usize) {
        let part = &self.input.buffer()[..length];
        if self.too_long.is_none() {
            return self.line.extend_from_slice(part);
        }
        self.tail.extend_from_slice(&part[length.saturating_sub(KEPT_BYTES)..]);
        self.tail.drain(..self.tail.len().saturating_sub(KEPT_BYTES));
    }

    fn finish(&mut self) -> Line<'_> {
        if let Some(why) = self.too_long.take() {
            return Line::TooLong { head: &self.line, tail: &self.tail, why };
        }
        let mut line = std::mem::take(&mut self.line);
        let slot = self.room.leave();
        if slot.is_some() {
            line.shrink_to_fit();
        }
        Line::Whole(Received::own(line, slot))
    }
}

/// Reads what the server says, until it ends or the connection does.
pub(super) async fn read(connection: Arc<Connection>, input: Box<dyn AsyncRead + Send + Unpin>) {
    let mut lines = Lines::new(input);
    let mut malformed = 0;
    let why = loop {
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
                    break format!("the server wrote {malformed} lines in a row that are not JSON-RPC");
                }
            }
            Ok(Some(Line::TooLong { head, tail, why })) => connection.receive_oversized(head, tail, None, why),
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
    use tokio::sync::mpsc;

    use super::*;
    use crate::upstream::large_message_slots::Slots;
    use crate::upstream::outbox::Outbox;
    use crate::upstream::rpc::{MAX_MESSAGE_BYTES, Side};
    use crate::upstream::tests::peer::who;

    fn connection() -> Arc<Connection> {
        let link = Link::Lines(Outbox::new(Box::new(tokio::io::sink())));
        Connection::new(link, Side { who: who(), unrelated: mpsc::channel(1).0, slots: Slots::new(1) })
    }

    async fn whole<R: AsyncRead + Unpin>(lines: &mut Lines<R>, connection: &Connection) -> Option<Vec<u8>> {
        match lines.next(connection).await.unwrap() {
            Some(Line::Whole(line)) => Some(line.bytes().to_vec()),
            Some(Line::TooLong { .. }) => panic!("it is too long"),
            None => None,
        }
    }

    #[tokio::test]
    async fn a_line_over_the_bound_is_skipped_without_being_held() {
        let long = MAX_MESSAGE_BYTES + 5;
        let input = [b"a\n{\"id\":1".as_slice(), &vec![b'x'; long], b"end}\nb\ncut"].concat();
        let (mut lines, connection) = (Lines::new(input.as_slice()), connection());
        assert_eq!(whole(&mut lines, &connection).await.unwrap(), b"a");
        let Some(Line::TooLong { head, tail, why }) = lines.next(&connection).await.unwrap() else { panic!() };
        assert!(head.starts_with(b"{\"id\":1") && tail.ends_with(b"xend}"));
        assert_eq!((head.len(), tail.len(), why), (KEPT_BYTES, KEPT_BYTES, UpstreamError::TooLarge));
        assert_eq!(whole(&mut lines, &connection).await.unwrap(), b"b");
        assert_eq!(whole(&mut lines, &connection).await, None);
    }

    #[tokio::test]
    async fn a_line_of_just_the_bound_is_whole() {
        let input = [vec![b'x'; MAX_MESSAGE_BYTES], b"\n".to_vec()].concat();
        let line = whole(&mut Lines::new(input.as_slice()), &connection()).await;
        assert_eq!(line.unwrap().len(), MAX_MESSAGE_BYTES);
    }

    proptest! {
        #[test]
        fn lines_come_out_as_they_went_in(texts in prop::collection::vec("[^\n]{0,40}", 0..20), chunk in 1_usize..9) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(async {
                let (ours, mut theirs) = tokio::io::duplex(chunk);
                let all = texts.iter().fold(String::new(), |all, text| all + text + "\n");
                let writer = tokio::spawn(async move {
                    tokio::io::AsyncWriteExt::write_all(&mut theirs, all.as_bytes()).await.unwrap();
                });
                let (mut lines, connection) = (Lines::new(ours), connection());
                for text in &texts {
                    assert_eq!(whole(&mut lines, &connection).await.unwrap(), text.as_bytes());
                }
                assert_eq!(whole(&mut lines, &connection).await, None);
                writer.await.unwrap();
            });
        }
    }
}
