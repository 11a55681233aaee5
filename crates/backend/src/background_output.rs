//! Reads and discards the output of processes that a command has left running: without a reader for its pipe, such a
//! process would be killed by `SIGPIPE`.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::time::Duration;

use ringfence_sandbox::launcher::{BackgroundStreams, MAX_BACKGROUND_STREAMS};
use ringfence_sandbox::pipe::is_at_eof;
use tokio::net::unix::pipe::Receiver;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

use crate::process::Process;

/// Pause between two reads: a process that writes without end is blocked most of the time, so it does not load the host.
const READ_INTERVAL: Duration = Duration::from_millis(50);

const READ_BYTES: usize = 64 << 10;

/// The output of ended commands that is still read. Dropping it stops the readers.
#[derive(Default)]
pub(crate) struct BackgroundOutput(VecDeque<AbortOnDropHandle<()>>);

impl BackgroundOutput {
    /// Reads the streams of a command that has ended, unless no process has their other ends open. Of more than
    /// [`MAX_BACKGROUND_STREAMS`], the oldest are closed. Returns copies for the next owner.
    pub(crate) fn add(&mut self, process: Process) -> Option<BackgroundStreams> {
        let Process { stdout, stderr, .. } = process;
        if is_at_eof(&stdout) && is_at_eof(&stderr) {
            return None;
        }
        let copies = [stdout.as_fd().try_clone_to_owned().ok(), stderr.as_fd().try_clone_to_owned().ok()];
        self.read(stdout, stderr);
        let [stdout, stderr] = copies;
        Some([stdout?, stderr?])
    }

    /// Reads the streams that a previous owner has stored.
    pub(crate) fn resume(&mut self, [stdout, stderr]: BackgroundStreams) {
        if let (Ok(stdout), Ok(stderr)) = (Receiver::from_owned_fd(stdout), Receiver::from_owned_fd(stderr)) {
            self.read(stdout, stderr);
        }
    }

    fn read(&mut self, stdout: Receiver, stderr: Receiver) {
        self.0.retain(|reader| !reader.is_finished());
        if self.0.len() == MAX_BACKGROUND_STREAMS {
            self.0.pop_front();
        }
        let reader = tokio::spawn(async move {
            tokio::join!(discard(stdout), discard(stderr));
        });
        self.0.push_back(AbortOnDropHandle::new(reader));
    }
}

async fn discard(stream: Receiver) {
    let mut buffer = Vec::new();
    while stream.readable().await.is_ok() {
        buffer.reserve(READ_BYTES);
        match stream.try_read_buf(&mut buffer) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
        // The buffer is freed, because there may be many readers that seldom have something to read.
        buffer = Vec::new();
        sleep(READ_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::OwnedFd;

    use super::*;

    fn process(stdout: OwnedFd, stderr: OwnedFd) -> Process {
        let receive = |fd| Receiver::from_owned_fd(fd).unwrap();
        Process { number: 1, stdout: receive(stdout), stderr: receive(stderr) }
    }

    #[tokio::test]
    async fn background_output_is_read_to_its_end_up_to_a_limit() {
        let mut output = BackgroundOutput::default();
        let mut writers = Vec::new();
        for _ in 0..MAX_BACKGROUND_STREAMS + 2 {
            let ((from, to), (from_stderr, _)) = (rustix::pipe::pipe().unwrap(), rustix::pipe::pipe().unwrap());
            writers.push(std::fs::File::from(to));
            output.add(process(from, from_stderr));
        }
        assert_eq!(output.0.len(), MAX_BACKGROUND_STREAMS);
        tokio::task::yield_now().await;
        // More than the capacity of a pipe.
        let mut last = writers.pop().unwrap();
        let write = tokio::task::spawn_blocking(move || last.write_all(&vec![b'x'; 300_000]));
        assert!(write.await.unwrap().is_ok());
        assert!(writers[0].write_all(b"x").is_err(), "the oldest is closed");
    }

    #[tokio::test]
    async fn streams_at_their_end_are_not_read() {
        let mut output = BackgroundOutput::default();
        let ((from, _), (from_stderr, _)) = (rustix::pipe::pipe().unwrap(), rustix::pipe::pipe().unwrap());
        output.add(process(from, from_stderr));
        assert!(output.0.is_empty());
    }
}
