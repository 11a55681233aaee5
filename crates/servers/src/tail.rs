//! The last lines that a server wrote to standard error.
//!
//! Always read, so that a server never waits for it; bounded in lines, in bytes a line and in bytes altogether.

use ringfence_core::sync::Mutex;
use std::collections::VecDeque;
use std::sync::MutexGuard;

use tokio::io::{AsyncRead, AsyncReadExt as _};

const MOST_LINES: usize = 500;
const MOST_LINE_BYTES: usize = 4 << 10;
const MOST_BYTES: usize = 256 << 10;
const READ_AT_ONCE: usize = 16 << 10;

#[derive(Default)]
pub(crate) struct Tail(Mutex<Lines>);

#[derive(Default)]
struct Lines {
    whole: VecDeque<String>,
    bytes: usize,
    /// The line that has no end yet, as far as it is kept.
    open: Vec<u8>,
}

impl Tail {
    /// Reads until the end, whatever comes.
    pub(crate) async fn read(&self, mut from: impl AsyncRead + Unpin) {
        let mut buffer = vec![0; READ_AT_ONCE];
        while let Ok(length @ 1..) = from.read(&mut buffer).await {
            self.add(&buffer[..length]);
            // A flood is always readable, and would starve whatever shares the thread.
            tokio::task::yield_now().await;
        }
    }

    /// Adds a line of ours.
    pub(crate) fn note(&self, line: &str) {
        let mut lines = self.lines();
        lines.close();
        lines.push(line);
        lines.close();
    }

    pub(crate) fn lines_so_far(&self) -> Vec<String> {
        let lines = self.lines();
        let open = (!lines.open.is_empty()).then(|| String::from_utf8_lossy(&lines.open).into_owned());
        lines.whole.iter().cloned().chain(open).collect()
    }

    fn add(&self, bytes: &[u8]) {
        let mut lines = self.lines();
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (content, is_whole) = piece.strip_suffix(b"\n").map_or((piece, false), |content| (content, true));
            let room = MOST_LINE_BYTES.saturating_sub(lines.open.len());
            lines.open.extend_from_slice(&content[..content.len().min(room)]);
            if is_whole {
                lines.end();
            }
        }
    }

    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.0.lock()
    }
}

impl Lines {
    fn push(&mut self, line: &str) {
        self.open.extend_from_slice(&line.as_bytes()[..line.len().min(MOST_LINE_BYTES)]);
    }

    fn close(&mut self) {
        if !self.open.is_empty() {
            self.end();
        }
    }

    fn end(&mut self) {
        let line = std::mem::take(&mut self.open);
        let line = String::from_utf8_lossy(line.strip_suffix(b"\r").unwrap_or(&line)).into_owned();
        self.bytes += line.len();
        self.whole.push_back(line);
        while self.whole.len() > MOST_LINES || self.bytes > MOST_BYTES {
            self.bytes -= self.whole.pop_front().map_or(0, |line| line.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_last_lines_are_kept_in_pieces_or_whole() {
        let tail = Tail::default();
        tail.read(&b"one\r\ntw"[..]).await;
        tail.read(&b"o\n\nopen"[..]).await;
        assert_eq!(tail.lines_so_far(), ["one", "two", "", "open"]);
        tail.note("ours");
        assert_eq!(tail.lines_so_far(), ["one", "two", "", "open", "ours"]);
    }

    #[tokio::test]
    async fn a_flood_is_bounded_in_lines_and_bytes() {
        let tail = Tail::default();
        let many: Vec<String> = (0..100_000).map(|number: u32| number.to_string()).collect();
        tail.read((many.join("\n") + "\n").as_bytes()).await;
        let lines = tail.lines_so_far();
        assert_eq!((lines.len(), lines[0].as_str(), lines[499].as_str()), (500, "99500", "99999"));
        tail.read(&vec![b'x'; 10 << 20][..]).await;
        tail.read(
            &[b"\n".as_slice(), &[b"y\xff".repeat(MOST_LINE_BYTES), b"\n".to_vec()].concat().repeat(200)].concat()[..],
        )
        .await;
        let lines = tail.lines_so_far();
        // A byte that is no text becomes three.
        assert!(lines.iter().all(|line| line.len() <= 3 * MOST_LINE_BYTES));
        assert!(lines.iter().map(String::len).sum::<usize>() <= MOST_BYTES + 3 * MOST_LINE_BYTES);
    }
}
