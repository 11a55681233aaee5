//! The standard input and output of a process, line by line.

use std::os::fd::OwnedFd;
use std::sync::MutexGuard;

use ringfence_core::sync::Mutex;
use tokio::net::unix::pipe::{Receiver, Sender};

/// Maximum length of a line. No protocol needs longer ones.
pub const MAX_LINE_BYTES: usize = 1 << 20;

const READ_BYTES: usize = 64 << 10;

/// The host's ends of the pipes.
pub struct Streams {
    pub input: Input,
    pub lines: Lines,
}

impl Streams {
    pub fn new(stdin: OwnedFd, stdout: OwnedFd) -> std::io::Result<Self> {
        let lines =
            Lines { stdout: Receiver::from_owned_fd(stdout)?, buffer: Vec::new(), searched: 0, is_skipping: false };
        Ok(Self { input: Input { stdin: Sender::from_owned_fd(stdin)?, unwritten: Mutex::default() }, lines })
    }
}

/// The standard input of the process.
pub struct Input {
    stdin: Sender,
    /// The rest of a line whose writer was cancelled. It is written before the next line, which would otherwise be
    /// appended to the incomplete one.
    unwritten: Mutex<Vec<u8>>,
}

impl Input {
    /// Writes one line. Waits while the process does not read.
    pub async fn write_line(&self, line: &str) -> std::io::Result<()> {
        self.write_out().await?;
        *self.unwritten() = format!("{line}\n").into_bytes();
        self.write_out().await
    }

    async fn write_out(&self) -> std::io::Result<()> {
        while !self.unwritten().is_empty() {
            self.stdin.writable().await?;
            let mut unwritten = self.unwritten();
            match self.stdin.try_write(&unwritten) {
                Ok(length) => drop(unwritten.drain(..length)),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn unwritten(&self) -> MutexGuard<'_, Vec<u8>> {
        self.unwritten.lock()
    }
}

/// The standard output of the process. Lines that are not requested stay in the pipe.
pub struct Lines {
    stdout: Receiver,
    buffer: Vec<u8>,
    /// The part of the buffer that has no end of a line.
    searched: usize,
    /// Whether the rest of a line that is too long is being discarded.
    is_skipping: bool,
}

/// A line is longer than [`MAX_LINE_BYTES`]. The lines after it can still be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a line is longer than 1 MiB")]
pub struct LineTooLong;

impl Lines {
    /// Returns the next line without its line feed; `None` at the end of the output. Cancel-safe.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, LineTooLong> {
        loop {
            if let Some(line) = self.take_line()? {
                return Ok(Some(line));
            }
            if self.stdout.readable().await.is_err() {
                return Ok(None);
            }
            self.buffer.reserve(READ_BYTES);
            match self.stdout.try_read_buf(&mut self.buffer) {
                Ok(0) if self.buffer.is_empty() || self.is_skipping => return Ok(None),
                Ok(0) => {
                    self.searched = 0;
                    return Ok(Some(std::mem::take(&mut self.buffer)));
                }
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(_) => return Ok(None),
            }
        }
    }

    fn take_line(&mut self) -> Result<Option<Vec<u8>>, LineTooLong> {
        loop {
            let found = self.buffer[self.searched..].iter().position(|byte| *byte == b'\n');
            let Some(end) = found.map(|end| self.searched + end) else {
                self.searched = self.buffer.len();
                if self.is_skipping {
                    self.buffer.clear();
                    self.searched = 0;
                } else if self.buffer.len() > MAX_LINE_BYTES {
                    self.is_skipping = true;
                    return Err(LineTooLong);
                }
                return Ok(None);
            };
            let mut line: Vec<u8> = self.buffer.drain(..=end).collect();
            self.searched = 0;
            if std::mem::take(&mut self.is_skipping) {
                continue;
            }
            line.pop();
            if line.len() > MAX_LINE_BYTES {
                return Err(LineTooLong);
            }
            return Ok(Some(line));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn lines() -> (std::fs::File, Lines) {
        let (from, stdout) = rustix::pipe::pipe().unwrap();
        let (_, stdin) = rustix::pipe::pipe().unwrap();
        let streams = Streams::new(stdin, from).unwrap();
        (stdout.into(), streams.lines)
    }

    #[tokio::test]
    async fn line_of_cancelled_writer_is_completed() {
        let (stdin, to_stdin) = rustix::pipe::pipe().unwrap();
        let (from_stdout, _stdout) = rustix::pipe::pipe().unwrap();
        let Streams { input, .. } = Streams::new(to_stdin, from_stdout).unwrap();
        let long = "x".repeat(300_000);
        let written = tokio::time::timeout(std::time::Duration::from_millis(50), input.write_line(&long)).await;
        assert!(written.is_err(), "the pipe is full");
        let reading = std::thread::spawn(move || {
            let mut lines = std::io::BufRead::lines(std::io::BufReader::new(std::fs::File::from(stdin)));
            [lines.next().unwrap().unwrap(), lines.next().unwrap().unwrap()]
        });
        input.write_line("hello").await.unwrap();
        assert!(reading.join().unwrap() == [long, "hello".to_owned()]);
    }

    #[tokio::test]
    async fn lines_are_separated_and_the_last_needs_no_line_feed() {
        let (mut stdout, mut lines) = lines();
        stdout.write_all(b"one\n\ntwo\xff\nlast").unwrap();
        drop(stdout);
        for expected in [Some(b"one".as_slice()), Some(b""), Some(b"two\xff"), Some(b"last"), None, None] {
            assert_eq!(lines.next().await.unwrap().as_deref(), expected);
        }
    }

    #[tokio::test]
    async fn too_long_line_is_skipped_and_the_next_is_read() {
        let (mut stdout, mut lines) = lines();
        let writer = std::thread::spawn(move || {
            stdout.write_all(&vec![b'x'; 3 * MAX_LINE_BYTES]).unwrap();
            stdout.write_all(b"\nnext\n").unwrap();
        });
        assert_eq!(lines.next().await, Err(LineTooLong));
        assert_eq!(lines.next().await.unwrap().as_deref(), Some(b"next".as_slice()));
        writer.join().unwrap();
        assert!(lines.buffer.capacity() < 2 * MAX_LINE_BYTES + READ_BYTES);
    }
}
