//! Writes to standard error from a separate thread: if the parent process does not read the pipe, a full pipe must not
//! block the supervisor.

use std::io::Write;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use ringfence_supervisor::WorkerLog;

/// Maximum number of writes that wait. More are dropped.
const MAX_QUEUED_WRITES: usize = 1024;

/// Maximum time that the supervisor waits for unwritten output before it exits.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(500);

enum Job {
    Write(Vec<u8>),
    Flush(SyncSender<()>),
}

#[derive(Clone)]
pub(super) struct Log(SyncSender<Job>);

impl Log {
    pub(super) fn start() -> Self {
        let (sender, jobs) = sync_channel(MAX_QUEUED_WRITES);
        // Never joined: the thread blocks while the pipe is full.
        std::thread::spawn(move || run_jobs(&jobs));
        Self(sender)
    }

    pub(super) fn for_worker(&self) -> WorkerLog {
        let log = self.clone();
        WorkerLog::new(move |bytes| log.queue(bytes))
    }

    /// Waits for a moment until everything is written.
    pub(super) fn flush(&self) {
        let (sender, done) = sync_channel(1);
        if self.0.try_send(Job::Flush(sender)).is_ok() {
            let _ = done.recv_timeout(FLUSH_TIMEOUT);
        }
    }

    fn queue(&self, bytes: &[u8]) {
        let _ = self.0.try_send(Job::Write(bytes.to_vec()));
    }
}

fn run_jobs(jobs: &Receiver<Job>) {
    let mut output = std::io::stderr();
    for job in jobs {
        match job {
            Job::Write(bytes) => drop(output.write_all(&bytes)),
            Job::Flush(done) => drop(done.try_send(())),
        }
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.queue(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
