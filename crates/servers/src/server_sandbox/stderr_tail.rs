//! The last lines that a server wrote to standard error.
//!
//! The stream is always read, so that a server never blocks on it. The number of lines, the bytes of a line and the
//! bytes altogether are limited.

use ringfence_core::sync::Mutex;
use std::collections::VecDeque;
use std::sync::MutexGuard;

use tokio::io::{AsyncRead, AsyncReadExt as _};

const MAX_LINES: usize = 500;
const MAX_LINE_BYTES: usize = 4 << 10;
const MAX_BYTES: usize = 256 << 10;
const READ_BUFFER_BYTES: usize = 16 << 10;

#[derive(Default)]
pub(crate) struct StderrTail(Mutex<Lines>);

#[derive(Default)]
struct Lines {
    complete: VecDeque<String>,
    /// The size of all complete lines.
    bytes: usize,
    /// The first bytes of the line that has no line feed yet.
    partial: Vec<u8>,
}

impl StderrTail {
    /// Reads a stream until it ends or fails.
    pub(crate) async fn read(&self, mut stream: impl AsyncRead + Unpin) {
        let mut buffer = vec![0; READ_BUFFER_BYTES];
        while let Ok(length @ 1..) = stream.read(&mut buffer).await {
            self.add(&buffer[..length]);
            // A stream that is always readable would otherwise starve other tasks of this thread.
            tokio::task::yield_now().await;
        }
    }

    /// Adds a line of ringfence itself.
    pub(crate) fn add_line(&self, line: &str) {
        let mut lines = self.lock();
        lines.complete_partial();
        lines.partial.extend_from_slice(&line.as_bytes()[..line.len().min(MAX_LINE_BYTES)]);
        lines.complete_partial();
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        let lines = self.lock();
        let partial = (!lines.partial.is_empty()).then(|| String::from_utf8_lossy(&lines.partial).into_owned());
        lines.complete.iter().cloned().chain(partial).collect()
    }

    fn add(&self, bytes: &[u8]) {
        let mut lines = self.lock();
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (content, is_complete) = piece.strip_suffix(b"\n").map_or((piece, false), |content| (content, true));
            let free = MAX_LINE_BYTES.saturating_sub(lines.partial.len());
            lines.partial.extend_from_slice(&content[..content.len().min(free)]);
            if is_complete {
                lines.end_line();
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Lines> {
        self.0.lock()
    }
}

impl Lines {
    fn complete_partial(&mut self) {
        if !self.partial.is_empty() {
            self.end_line();
        }
    }

    fn end_line(&mut self) {
        let line = std::mem::take(&mut self.partial);
        let line = String::from_utf8_lossy(line.strip_suffix(b"\r").unwrap_or(&line)).into_owned();
        self.bytes += line.len();
        self.complete.push_back(line);
        while self.complete.len() > MAX_LINES || self.bytes > MAX_BYTES {
            self.bytes -= self.complete.pop_front().map_or(0, |line| line.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn returns_complete_and_partial_lines() {
        let tail = StderrTail::default();
        tail.read(&b"one\r\ntw"[..]).await;
        tail.read(&b"o\n\nopen"[..]).await;
        assert_eq!(tail.lines(), ["one", "two", "", "open"]);
        tail.add_line("ours");
        assert_eq!(tail.lines(), ["one", "two", "", "open", "ours"]);
    }

    #[tokio::test]
    async fn flood_is_limited_in_lines_and_bytes() {
        let tail = StderrTail::default();
        let many: Vec<String> = (0..100_000).map(|number: u32| number.to_string()).collect();
        tail.read((many.join("\n") + "\n").as_bytes()).await;
        let lines = tail.lines();
        assert_eq!((lines.len(), lines[0].as_str(), lines[499].as_str()), (500, "99500", "99999"));
        tail.read(&vec![b'x'; 10 << 20][..]).await;
        tail.read(
            &[b"\n".as_slice(), &[b"y\xff".repeat(MAX_LINE_BYTES), b"\n".to_vec()].concat().repeat(200)].concat()[..],
        )
        .await;
        let lines = tail.lines();
        // A byte that is not UTF-8 becomes a replacement character of three bytes.
        assert!(lines.iter().all(|line| line.len() <= 3 * MAX_LINE_BYTES));
        assert!(lines.iter().map(String::len).sum::<usize>() <= MAX_BYTES + 3 * MAX_LINE_BYTES);
    }
}
