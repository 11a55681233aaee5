//! Reads the stderr of a worker: forwards it to the log, and stores the last lines for error reports.

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

const MAX_LINES: usize = 20;
const MAX_LINE_BYTES: usize = 2000;

/// Maximum time to read after the worker has exited, since processes that it started may keep the pipe open.
const FINAL_READ_TIMEOUT: Duration = Duration::from_millis(200);

/// Reads in a task that ends when this is dropped.
pub(crate) struct StderrReader {
    tail: Arc<Mutex<Tail>>,
    task: Option<JoinHandle<()>>,
}

impl StderrReader {
    pub(crate) fn start(stderr: Option<OwnedFd>, log: Option<WorkerLog>) -> Result<Self> {
        let tail = Arc::new(Mutex::new(Tail::default()));
        let Some(stderr) = stderr else { return Ok(Self { tail, task: None }) };
        let mut pipe = Receiver::from_owned_fd(stderr)?;
        let shared = Arc::clone(&tail);
        let task = tokio::spawn(async move {
            let mut bytes = [0; 8192];
            while let Ok(length @ 1..) = pipe.read(&mut bytes).await {
                let chunk = &bytes[..length];
                if let Some(log) = &log {
                    log.write(chunk);
                }
                shared.lock().append(chunk);
            }
        });
        Ok(Self { tail, task: Some(task) })
    }

    /// Returns the last lines of a worker that has exited.
    pub(crate) async fn last_lines(&mut self) -> Vec<String> {
        if let Some(task) = &mut self.task {
            let _ = tokio::time::timeout(FINAL_READ_TIMEOUT, task).await;
        }
        self.lines()
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.tail.lock().lines()
    }
}

impl Drop for StderrReader {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

#[derive(Default)]
struct Tail {
    complete: VecDeque<String>,
    /// The current line, without a line feed.
    partial: Vec<u8>,
}

impl Tail {
    fn append(&mut self, bytes: &[u8]) {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (text, is_complete) = part.strip_suffix(b"\n").map_or((part, false), |text| (text, true));
            let free = MAX_LINE_BYTES.saturating_sub(self.partial.len());
            self.partial.extend(&text[..text.len().min(free)]);
            if is_complete {
                let line = readable(&self.partial);
                self.partial.clear();
                self.complete.push_back(line);
                if self.complete.len() > MAX_LINES {
                    self.complete.pop_front();
                }
            }
        }
    }

    fn lines(&self) -> Vec<String> {
        let partial = (!self.partial.is_empty()).then(|| readable(&self.partial));
        self.complete.iter().cloned().chain(partial).collect()
    }
}

/// Removes control characters, which a terminal would interpret.
fn readable(line: &[u8]) -> String {
    String::from_utf8_lossy(line).chars().filter(|char| !char.is_control() || *char == '\t').collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_lines_are_stored_and_long_lines_are_cut() {
        let mut tail = Tail::default();
        for number in 0..50 {
            tail.append(format!("line {number}\n").as_bytes());
        }
        tail.append(b"in ");
        tail.append("x".repeat(10_000).as_bytes());
        tail.append(b"\x1b[31m\nnot ended");
        let lines = tail.lines();
        assert_eq!(lines.len(), MAX_LINES + 1);
        assert_eq!(lines[0], "line 31");
        assert_eq!(lines[MAX_LINES - 1].len(), MAX_LINE_BYTES);
        assert_eq!(lines[MAX_LINES], "not ended");
    }
}
