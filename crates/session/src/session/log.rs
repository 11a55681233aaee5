//! The log of a session: its last calls.

use std::collections::VecDeque;
use std::sync::Arc;

use ringfence_core::sync::Mutex;
use serde::Serialize;

use super::Work;
use crate::api::Status;
use crate::calls::Outcome;
use crate::state::now_s;

/// Maximum number of entries.
const MAX_ENTRIES: usize = 64;

/// Maximum length of the code or command in an entry.
const MAX_CHARS: usize = 200;

/// A call that has ended.
#[derive(Debug, Clone, Serialize)]
pub struct LogEntry {
    /// The arrival of the call, in seconds since the epoch.
    pub time: u64,
    pub kind: &'static str,
    /// The start of its first line.
    pub what: String,
    /// None if the call was refused, or its session ended first.
    pub status: Option<Status>,
    pub exit_code: Option<i32>,
    /// The duration of the run, without waits.
    pub duration_ms: u64,
}

/// The last calls of one session.
#[derive(Default)]
pub(crate) struct CallLog(Mutex<VecDeque<LogEntry>>);

impl CallLog {
    /// The entries, oldest first.
    pub(crate) fn entries(&self) -> Vec<LogEntry> {
        self.0.lock().iter().cloned().collect()
    }

    fn add(&self, entry: LogEntry) {
        let mut entries = self.0.lock();
        while entries.len() >= MAX_ENTRIES {
            entries.pop_front();
        }
        entries.push_back(entry);
    }
}

/// A running call. Dropping it adds the entry.
pub(crate) struct CallRecord {
    log: Arc<CallLog>,
    entry: Option<LogEntry>,
}

impl CallRecord {
    pub(crate) fn begin(log: &Arc<CallLog>, work: &Work) -> Self {
        let (kind, text) = work.describe();
        let what: String = text.trim_start().lines().next().unwrap_or_default().chars().take(MAX_CHARS).collect();
        let entry = LogEntry { time: now_s(), kind, what, status: None, exit_code: None, duration_ms: 0 };
        Self { log: Arc::clone(log), entry: Some(entry) }
    }

    pub(crate) fn end(mut self, outcome: &Outcome) {
        if let Some(entry) = &mut self.entry {
            (entry.status, entry.exit_code) = (Some(outcome.status), outcome.exit_code);
            entry.duration_ms = u64::try_from(outcome.duration.as_millis()).unwrap_or(u64::MAX);
        }
    }
}

impl Drop for CallRecord {
    fn drop(&mut self) {
        if let Some(entry) = self.entry.take() {
            self.log.add(entry);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_calls_are_logged() {
        let log = Arc::<CallLog>::default();
        for number in 0..100 {
            let record = CallRecord::begin(&log, &Work::Command(format!("  echo {number}\nsecond line")));
            if number % 2 == 0 {
                record.end(&Outcome::new(Status::Ok));
            }
        }
        let entries = log.entries();
        assert_eq!((entries.len(), entries[0].what.as_str()), (MAX_ENTRIES, "echo 36"));
        assert_eq!((entries[62].status, entries[63].status), (Some(Status::Ok), None));
    }
}
