//! What a worker says on standard error: passed on as it comes, its last lines kept.

use ringfence_core::sync::Mutex;
use std::collections::VecDeque;
use std::io::Result;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe::Receiver;
use tokio::task::JoinHandle;

use super::options::WorkerLog;

const KEPT_LINES: usize = 20;
const KEPT_BYTES_OF_A_LINE: usize = 2000;

/// Something that a dead worker has started may hold the pipe open.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// Dropped, it listens no more.
pub(crate) struct Said {
    tail: Arc<Mutex<Tail>>,
    listening: Option<JoinHandle<()>>,
}

impl Said {
    pub(crate) fn listen(stderr: Option<OwnedFd>, log: Option<WorkerLog>) -> Result<Self> {
        let tail = Arc::new(Mutex::new(Tail::default()));
        let Some(stderr) = stderr else { return Ok(Self { tail, listening: None }) };
        let mut pipe = Receiver::from_owned_fd(stderr)?;
        let shared = Arc::clone(&tail);
        let listening = tokio::spawn(async move {
            let mut bytes = [0; 8192];
            while let Ok(length @ 1..) = pipe.read(&mut bytes).await {
                let said = &bytes[..length];
                if let Some(log) = &log {
                    log.take(said);
                }
                shared.lock().hear(said);
            }
        });
        Ok(Self { tail, listening: Some(listening) })
    }

    /// The last lines of a worker that has ended.
    pub(crate) async fn last_lines(&mut self) -> Vec<String> {
        if let Some(listening) = &mut self.listening {
            let _ = tokio::time::timeout(LAST_WORDS, listening).await;
        }
        self.heard()
    }

    pub(crate) fn heard(&self) -> Vec<String> {
        self.tail.lock().lines()
    }
}

impl Drop for Said {
    fn drop(&mut self) {
        if let Some(listening) = &self.listening {
            listening.abort();
        }
    }
}

#[derive(Default)]
struct Tail {
    whole: VecDeque<String>,
    /// The line that has not ended.
    open: Vec<u8>,
}

impl Tail {
    fn hear(&mut self, bytes: &[u8]) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (text, is_whole) = piece.strip_suffix(b"\n").map_or((piece, false), |text| (text, true));
            let room = KEPT_BYTES_OF_A_LINE.saturating_sub(self.open.len());
            self.open.extend(&text[..text.len().min(room)]);
            if is_whole {
                let line = readable(&self.open);
                self.open.clear();
                self.whole.push_back(line);
                if self.whole.len() > KEPT_LINES {
                    self.whole.pop_front();
                }
            }
        }
    }

    fn lines(&self) -> Vec<String> {
        let open = (!self.open.is_empty()).then(|| readable(&self.open));
        self.whole.iter().cloned().chain(open).collect()
    }
}

/// Without what a terminal would obey.
fn readable(line: &[u8]) -> String {
    String::from_utf8_lossy(line).chars().filter(|char| !char.is_control() || *char == '\t').collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_kept_and_long_ones_cut() {
        let mut tail = Tail::default();
        for number in 0..50 {
            tail.hear(format!("line {number}\n").as_bytes());
        }
        tail.hear(b"in ");
        tail.hear("x".repeat(10_000).as_bytes());
        tail.hear(b"\x1b[31m\nnot ended");
        let lines = tail.lines();
        assert_eq!(lines.len(), KEPT_LINES + 1);
        assert_eq!(lines[0], "line 31");
        assert_eq!(lines[KEPT_LINES - 1].len(), KEPT_BYTES_OF_A_LINE);
        assert_eq!(lines[KEPT_LINES], "not ended");
    }
}
