//! The last calls of a session, for whoever wants to know what was done in it.

use ringfence_core::sync::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;

use super::{Sessions, Status};
use crate::session_state::now;
use crate::session_task::Work;
use ringfence_core::{Failure, Principal, SessionId};

/// Calls that are remembered.
const MOST: usize = 64;

/// What is kept of the code or command.
const MOST_CHARS: usize = 200;

/// A call that has ended.
#[derive(Debug, Clone, Serialize)]
pub struct LogEntry {
    /// When it came, in seconds since the epoch.
    pub time: u64,
    pub kind: &'static str,
    /// Its first line, as far as it fits.
    pub what: String,
    /// None if it was refused, or its session ended first.
    pub status: Option<Status>,
    pub exit_code: Option<i32>,
    pub duration_ms: u64,
}

#[derive(Default)]
pub(crate) struct Log(Mutex<VecDeque<LogEntry>>);

impl Log {
    fn add(&self, entry: LogEntry) {
        let mut entries = self.0.lock();
        while entries.len() >= MOST {
            entries.pop_front();
        }
        entries.push_back(entry);
    }
}

/// A call under way. Dropped, it is remembered.
pub(crate) struct Record {
    log: Arc<Log>,
    start: Instant,
    entry: Option<LogEntry>,
}

impl Record {
    pub(crate) fn begin(log: &Arc<Log>, work: &Work) -> Self {
        let (kind, text) = work.describe();
        let what: String = text.trim_start().lines().next().unwrap_or_default().chars().take(MOST_CHARS).collect();
        let entry = LogEntry { time: now(), kind, what, status: None, exit_code: None, duration_ms: 0 };
        Self { log: Arc::clone(log), start: Instant::now(), entry: Some(entry) }
    }

    pub(crate) fn end(mut self, status: Status, exit_code: Option<i32>) {
        if let Some(entry) = &mut self.entry {
            (entry.status, entry.exit_code) = (Some(status), exit_code);
        }
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        if let Some(mut entry) = self.entry.take() {
            entry.duration_ms = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
            self.log.add(entry);
        }
    }
}

impl Sessions {
    /// The last calls of a session, oldest first.
    pub fn log(&self, principal: &Principal, id: &SessionId) -> Result<Vec<LogEntry>, Failure> {
        let log = self.find(principal, id).map_err(|failure| self.refused(principal, Some(id), failure))?.log;
        let entries = log.0.lock();
        Ok(entries.iter().cloned().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_calls_are_kept_and_no_more() {
        let log = Arc::<Log>::default();
        for number in 0..100 {
            let record = Record::begin(&log, &Work::Command(format!("  echo {number}\nsecond line")));
            if number % 2 == 0 {
                record.end(Status::Ok, Some(0));
            }
        }
        let entries = log.0.lock();
        assert_eq!((entries.len(), entries[0].what.as_str()), (MOST, "echo 36"));
        assert_eq!((entries[62].status, entries[63].status), (Some(Status::Ok), None));
    }
}
