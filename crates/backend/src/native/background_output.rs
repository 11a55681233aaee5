//! What a command has left running, and still writes: read and thrown away, since whoever writes into a pipe that nobody
//! has any more is ended by that.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::time::Duration;

use ringfence_sandbox::launcher::{BackgroundStreams, MAX_BACKGROUND_STREAMS};
use ringfence_sandbox::pipe::is_at_eof;
use tokio::net::unix::pipe::Receiver;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

use crate::instance::Process;

/// Between two reads, so that one who writes without end waits most of the time, and does not keep the host busy.
const PAUSE: Duration = Duration::from_millis(50);

const READ_AT_ONCE: usize = 64 << 10;

/// Dropped, nothing is read any more.
#[derive(Default)]
pub(crate) struct BackgroundOutput(VecDeque<AbortOnDropHandle<()>>);

impl BackgroundOutput {
    /// Takes the streams of a command that has ended, unless nobody has their other ends any more; of more than
    /// [`MOST_LEFTOVERS`], the oldest are let go. Gives copies for a next owner.
    pub(crate) fn take(&mut self, process: Process) -> Option<BackgroundStreams> {
        let Process { stdout, stderr, .. } = process;
        if is_at_eof(&stdout) && is_at_eof(&stderr) {
            return None;
        }
        let copies = [stdout.as_fd().try_clone_to_owned().ok(), stderr.as_fd().try_clone_to_owned().ok()];
        self.read(stdout, stderr);
        let [stdout, stderr] = copies;
        Some([stdout?, stderr?])
    }

    /// Takes what an owner before had.
    pub(crate) fn resume(&mut self, [stdout, stderr]: BackgroundStreams) {
        if let (Ok(stdout), Ok(stderr)) = (Receiver::from_owned_fd(stdout), Receiver::from_owned_fd(stderr)) {
            self.read(stdout, stderr);
        }
    }

    fn read(&mut self, stdout: Receiver, stderr: Receiver) {
        self.0.retain(|reading| !reading.is_finished());
        if self.0.len() == MAX_BACKGROUND_STREAMS {
            self.0.pop_front();
        }
        let reading = tokio::spawn(async move {
            tokio::join!(read_on(stdout), read_on(stderr));
        });
        self.0.push_back(AbortOnDropHandle::new(reading));
    }
}

async fn read_on(stream: Receiver) {
    let mut buffer = Vec::new();
    while stream.readable().await.is_ok() {
        buffer.reserve(READ_AT_ONCE);
        match stream.try_read_buf(&mut buffer) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
        // Not kept: those that wait are many, and write seldom.
        buffer = Vec::new();
        sleep(PAUSE).await;
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
    async fn who_writes_on_is_read_to_the_end_and_no_more_than_some_at_a_time() {
        let mut leftovers = BackgroundOutput::default();
        let mut writers = Vec::new();
        for _ in 0..MAX_BACKGROUND_STREAMS + 2 {
            let ((from, to), (from_stderr, _)) = (rustix::pipe::pipe().unwrap(), rustix::pipe::pipe().unwrap());
            writers.push(std::fs::File::from(to));
            leftovers.take(process(from, from_stderr));
        }
        assert_eq!(leftovers.0.len(), MAX_BACKGROUND_STREAMS);
        tokio::task::yield_now().await;
        // A pipe holds less than this.
        let mut last = writers.pop().unwrap();
        let writing = tokio::task::spawn_blocking(move || last.write_all(&vec![b'x'; 300_000]));
        assert!(writing.await.unwrap().is_ok());
        assert!(writers[0].write_all(b"x").is_err(), "the oldest is let go");
    }

    #[tokio::test]
    async fn what_has_ended_is_not_kept() {
        let mut leftovers = BackgroundOutput::default();
        let ((from, _), (from_stderr, _)) = (rustix::pipe::pipe().unwrap(), rustix::pipe::pipe().unwrap());
        leftovers.take(process(from, from_stderr));
        assert!(leftovers.0.is_empty());
    }
}
