//! A process's standard input and output, a line at a time.

use ringfence_core::sync::Mutex;
use std::os::fd::OwnedFd;
use std::sync::MutexGuard;

use tokio::net::unix::pipe::{Receiver, Sender};

/// No line of a protocol has reason to be longer.
pub const MOST_LINE_BYTES: usize = 1 << 20;

const READ_AT_ONCE: usize = 64 << 10;

/// The host's ends of the pipes.
pub struct Streams {
    pub input: Input,
    pub lines: Lines,
}

impl Streams {
    pub fn new(stdin: OwnedFd, stdout: OwnedFd) -> std::io::Result<Self> {
        let lines =
            Lines { stdout: Receiver::from_owned_fd(stdout)?, buffer: Vec::new(), searched: 0, skipping: false };
        Ok(Self { input: Input { stdin: Sender::from_owned_fd(stdin)?, unwritten: Mutex::default() }, lines })
    }
}

/// What is written here the process reads.
pub struct Input {
    stdin: Sender,
    /// The rest of a line whose writer has left: without it the next one would be a part of it.
    unwritten: Mutex<Vec<u8>>,
}

impl Input {
    /// Writes one line; waits as long as the process does not read.
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

/// What the process writes, line by line. What is not asked for stays in the pipe.
pub struct Lines {
    stdout: Receiver,
    buffer: Vec<u8>,
    searched: usize,
    skipping: bool,
}

/// A line longer than [`MOST_LINE_BYTES`]; what follows it can still be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a line is longer than 1 MiB")]
pub struct LineTooLong;

impl Lines {
    /// The next line without its end, or none at the end of output. Cancel-safe.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, LineTooLong> {
        loop {
            if let Some(line) = self.take_line()? {
                return Ok(Some(line));
            }
            if self.stdout.readable().await.is_err() {
                return Ok(None);
            }
            self.buffer.reserve(READ_AT_ONCE);
            match self.stdout.try_read_buf(&mut self.buffer) {
                Ok(0) if self.buffer.is_empty() || self.skipping => return Ok(None),
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
                if self.skipping {
                    self.buffer.clear();
                    self.searched = 0;
                } else if self.buffer.len() > MOST_LINE_BYTES {
                    self.skipping = true;
                    return Err(LineTooLong);
                }
                return Ok(None);
            };
            let mut line: Vec<u8> = self.buffer.drain(..=end).collect();
            self.searched = 0;
            if std::mem::take(&mut self.skipping) {
                continue;
            }
            line.pop();
            if line.len() > MOST_LINE_BYTES {
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
    async fn a_line_whose_writer_leaves_stays_a_line() {
        let (stdin, to_stdin) = rustix::pipe::pipe().unwrap();
        let (from_stdout, _stdout) = rustix::pipe::pipe().unwrap();
        let Streams { input, .. } = Streams::new(to_stdin, from_stdout).unwrap();
        let long = "x".repeat(300_000);
        let left = tokio::time::timeout(std::time::Duration::from_millis(50), input.write_line(&long)).await;
        assert!(left.is_err(), "nobody reads");
        let reading = std::thread::spawn(move || {
            let mut lines = std::io::BufRead::lines(std::io::BufReader::new(std::fs::File::from(stdin)));
            [lines.next().unwrap().unwrap(), lines.next().unwrap().unwrap()]
        });
        input.write_line("hello").await.unwrap();
        assert!(reading.join().unwrap() == [long, "hello".to_owned()]);
    }

    #[tokio::test]
    async fn lines_come_one_by_one_and_the_last_without_its_end() {
        let (mut stdout, mut lines) = lines();
        stdout.write_all(b"one\n\ntwo\xff\nlast").unwrap();
        drop(stdout);
        for expected in [Some(b"one".as_slice()), Some(b""), Some(b"two\xff"), Some(b"last"), None, None] {
            assert_eq!(lines.next().await.unwrap().as_deref(), expected);
        }
    }

    #[tokio::test]
    async fn a_line_without_end_is_given_up_and_the_next_is_read() {
        let (mut stdout, mut lines) = lines();
        let writer = std::thread::spawn(move || {
            stdout.write_all(&vec![b'x'; 3 * MOST_LINE_BYTES]).unwrap();
            stdout.write_all(b"\nnext\n").unwrap();
        });
        assert_eq!(lines.next().await, Err(LineTooLong));
        assert_eq!(lines.next().await.unwrap().as_deref(), Some(b"next".as_slice()));
        writer.join().unwrap();
        assert!(lines.buffer.capacity() < 2 * MOST_LINE_BYTES + READ_AT_ONCE);
    }
}
