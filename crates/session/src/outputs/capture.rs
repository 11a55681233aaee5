//! Captures the output of a guest within a limit: its start and its end in memory, all of it in a file.

use std::collections::VecDeque;

use ringfence_backend::Process;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::net::unix::pipe::Receiver;

use super::Output;
use super::full_output::FullOutput;

/// Maximum size of the head and of the tail.
const MAX_PART_BYTES: usize = 64 << 10;

const READ_BYTES: usize = 64 << 10;

/// The output of a call.
pub(crate) struct CallOutput {
    pub(crate) stdout: Output,
    pub(crate) stderr: Output,
}

/// Captures both streams of a process while a call runs.
#[derive(Default)]
pub(crate) struct ProcessCapture {
    stdout: StreamCapture,
    stderr: StreamCapture,
}

impl ProcessCapture {
    /// Waits for output and captures it. Never returns after both streams have ended. Cancel-safe.
    pub(crate) async fn read(&mut self, process: &mut Process) {
        tokio::select! {
            () = read_stream(&process.stdout, &mut self.stdout) => {}
            () = read_stream(&process.stderr, &mut self.stderr) => {}
        }
    }

    /// Captures the remaining output without waiting.
    pub(crate) fn drain(&mut self, process: &mut Process) {
        // Polled directly: the async runtime may not know yet that there is something to read.
        let mut watched = [&process.stdout, &process.stderr].map(|stream| PollFd::new(stream, PollFlags::IN));
        if poll(&mut watched, Some(&Timespec::default())) == Ok(0) {
            return;
        }
        drain_stream(&process.stdout, &mut self.stdout);
        drain_stream(&process.stderr, &mut self.stderr);
    }

    pub(crate) fn finish(self) -> CallOutput {
        CallOutput { stdout: self.stdout.finish(), stderr: self.stderr.finish() }
    }
}

async fn read_stream(stream: &Receiver, capture: &mut StreamCapture) {
    loop {
        if stream.readable().await.is_err() {
            std::future::pending::<()>().await;
        }
        match read_once(stream, capture) {
            // The end of a stream is reported again and again, so nothing more is waited for.
            Ok(0) => std::future::pending().await,
            Ok(_) => return,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => std::future::pending().await,
        }
    }
}

fn drain_stream(stream: &Receiver, capture: &mut StreamCapture) {
    /// A guest that prints without end must not delay the response of its own call.
    const MAX_READS: usize = 1024;
    let mut buffer = vec![0; READ_BYTES];
    for _ in 0..MAX_READS {
        match rustix::io::read(stream, &mut buffer) {
            Ok(length @ 1..) => capture.add(&buffer[..length]),
            Err(rustix::io::Errno::INTR) => {}
            Ok(0) | Err(_) => return,
        }
    }
}

/// Reads into the heap, so that tasks which wait here stay small.
fn read_once(stream: &Receiver, capture: &mut StreamCapture) -> std::io::Result<usize> {
    let mut buffer = Vec::with_capacity(READ_BYTES);
    let length = stream.try_read_buf(&mut buffer)?;
    capture.add(&buffer);
    Ok(length)
}

/// Captures one stream.
#[derive(Debug, Default)]
struct StreamCapture {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    dropped_bytes: u64,
    full: Option<FullOutput>,
}

impl StreamCapture {
    fn add(&mut self, mut bytes: &[u8]) {
        self.add_to_full(bytes);
        let capacity = MAX_PART_BYTES - self.head.len();
        let (to_head, rest) = bytes.split_at(capacity.min(bytes.len()));
        self.head.extend_from_slice(to_head);
        bytes = rest;
        if bytes.len() > MAX_PART_BYTES {
            let (dropped, last) = bytes.split_at(bytes.len() - MAX_PART_BYTES);
            self.dropped_bytes += dropped.len() as u64;
            bytes = last;
        }
        self.tail.extend(bytes);
        let excess = self.tail.len().saturating_sub(MAX_PART_BYTES);
        self.tail.drain(..excess);
        self.dropped_bytes += excess as u64;
    }

    /// Begins to write the full output when bytes are about to be dropped: until then head and tail are all of it.
    fn add_to_full(&mut self, bytes: &[u8]) {
        let length = self.head.len() + self.tail.len() + bytes.len();
        if self.dropped_bytes == 0 && self.full.is_none() && length > 2 * MAX_PART_BYTES {
            self.full = FullOutput::create();
            let (tail_start, tail_end) = self.tail.as_slices();
            if let Some(full) = &mut self.full {
                for part in [&self.head, tail_start, tail_end] {
                    full.add(part);
                }
            }
        }
        if let Some(full) = &mut self.full {
            full.add(bytes);
        }
    }

    fn finish(mut self) -> Output {
        if self.dropped_bytes == 0 {
            self.head.extend(self.tail.drain(..));
        }
        Output { head: self.head, tail: self.tail.into(), dropped_bytes: self.dropped_bytes, full: self.full }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_output_is_captured_completely() {
        let mut capture = StreamCapture::default();
        capture.add(b"one ");
        capture.add(&vec![b'x'; MAX_PART_BYTES]);
        capture.add(b" two");
        let output = capture.finish();
        assert_eq!((output.head.len(), output.tail.len(), output.dropped_bytes), (MAX_PART_BYTES + 8, 0, 0));
        assert!(output.full.is_none());
        assert!(output.head.starts_with(b"one x") && output.head.ends_with(b"x two"));
    }

    #[test]
    fn long_output_has_head_and_tail_and_counts_the_rest() {
        let mut capture = StreamCapture::default();
        capture.add(b"start");
        for _ in 0..1000 {
            capture.add(&vec![b'.'; 10_000]);
        }
        capture.add(b"end");
        let output = capture.finish();
        assert!(output.head.starts_with(b"start.") && output.tail.ends_with(b".end"));
        assert_eq!((output.head.len(), output.tail.len()), (MAX_PART_BYTES, MAX_PART_BYTES));
        assert_eq!(output.dropped_bytes, 10_000_008 - 2 * MAX_PART_BYTES as u64);
        let full = output.full.unwrap();
        assert_eq!(full.bytes + full.missing_bytes, 10_000_008);
    }
}
