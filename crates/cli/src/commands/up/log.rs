//! Standard error that nobody waits for: whoever has started the supervisor may not read it, and a full pipe must not
//! keep it from its work.

use std::io::Write;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use ringfence_supervisor::WorkerLog;

/// Pieces that may wait; what comes on top is dropped.
const WAITING: usize = 1024;

/// How long the end waits for what has not been read.
const LAST_WORDS: Duration = Duration::from_millis(500);

enum Piece {
    Text(Vec<u8>),
    Flush(SyncSender<()>),
}

#[derive(Clone)]
pub(super) struct Log(SyncSender<Piece>);

impl Log {
    pub(super) fn start() -> Self {
        let (sender, pieces) = sync_channel(WAITING);
        // Detached: it may hang for as long as nobody reads.
        std::thread::spawn(move || write_all(&pieces));
        Self(sender)
    }

    pub(super) fn for_worker(&self) -> WorkerLog {
        let log = self.clone();
        WorkerLog::new(move |said| log.take(said))
    }

    /// Waits for a moment until everything is written.
    pub(super) fn flush(&self) {
        let (sender, done) = sync_channel(1);
        if self.0.try_send(Piece::Flush(sender)).is_ok() {
            let _ = done.recv_timeout(LAST_WORDS);
        }
    }

    fn take(&self, bytes: &[u8]) {
        let _ = self.0.try_send(Piece::Text(bytes.to_vec()));
    }
}

fn write_all(pieces: &Receiver<Piece>) {
    let mut output = std::io::stderr();
    for piece in pieces {
        match piece {
            Piece::Text(text) => drop(output.write_all(&text)),
            Piece::Flush(done) => drop(done.try_send(())),
        }
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.take(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
