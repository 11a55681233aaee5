//! How a supervised endpoint stands, for whoever asks from another thread.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// Why a worker was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reason {
    #[serde(rename = "exited")]
    Exited,
    /// A preflight is the first probe.
    #[serde(rename = "probe failed")]
    ProbeFailed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    /// The first worker is not ready yet.
    Starting,
    Healthy,
    /// The last probe failed.
    Failing,
    /// Another worker takes the place of one that was lost; connections wait.
    Restarting,
    Ended,
}

/// How it stands now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    pub endpoint: String,
    /// The supervisor's.
    pub pid: u32,
    pub health: Health,
    pub worker_pid: Option<u32>,
    pub restarts: u32,
    /// Why the last worker was lost that was.
    pub last_reason: Option<Reason>,
    pub last_detail: Option<String>,
    pub uptime_s: u64,
}

/// Why nothing is tried any more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GaveUp {
    #[serde(rename = "error")]
    pub detail: String,
    pub reason: Reason,
    /// Restarts that were tried.
    #[serde(rename = "count")]
    pub restarts: u32,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    /// What the last worker last said.
    pub stderr: Vec<String>,
    pub endpoint: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    Stopped,
    GaveUp(Box<GaveUp>),
}

/// A keeper that says nothing for so long hangs.
const SLEEPS: Duration = Duration::from_secs(10);

/// Where the keeper writes, and others read.
pub(crate) struct Board {
    endpoint: String,
    started: Instant,
    /// When the keeper last said that it is awake, in milliseconds since it was started.
    awake_ms: AtomicU64,
    shown: Mutex<Shown>,
    changed: Condvar,
}

pub(crate) struct Shown {
    pub(crate) health: Health,
    pub(crate) worker_pid: Option<u32>,
    pub(crate) restarts: u32,
    pub(crate) last: Option<(Reason, String)>,
    /// Known once a worker was ready.
    pub(crate) tools: Option<Vec<String>>,
    ending: Option<Ending>,
}

impl Board {
    pub(crate) fn new(endpoint: String) -> Arc<Self> {
        let shown =
            Shown { health: Health::Starting, worker_pid: None, restarts: 0, last: None, tools: None, ending: None };
        Arc::new(Self {
            endpoint,
            started: Instant::now(),
            awake_ms: AtomicU64::new(0),
            shown: Mutex::new(shown),
            changed: Condvar::new(),
        })
    }

    pub(crate) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Said by the keeper, from its own thread, for as long as that goes on.
    pub(crate) fn say_awake(&self) {
        let now = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.awake_ms.store(now, Ordering::Relaxed);
    }

    pub(crate) fn is_awake(&self) -> bool {
        let last = Duration::from_millis(self.awake_ms.load(Ordering::Relaxed));
        self.started.elapsed().saturating_sub(last) < SLEEPS
    }

    pub(crate) fn show(&self, change: impl FnOnce(&mut Shown)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    pub(crate) fn status(&self) -> Status {
        let shown = self.lock();
        Status {
            endpoint: self.endpoint.clone(),
            pid: std::process::id(),
            health: shown.health,
            worker_pid: shown.worker_pid,
            restarts: shown.restarts,
            last_reason: shown.last.as_ref().map(|(reason, _)| *reason),
            last_detail: shown.last.as_ref().map(|(_, detail)| detail.clone()),
            uptime_s: self.started.elapsed().as_secs(),
        }
    }

    pub(crate) fn wait_ready(&self) -> Result<Vec<String>, Ending> {
        let is_open = |shown: &mut Shown| shown.tools.is_none() && shown.ending.is_none();
        let shown = self.changed.wait_while(self.lock(), is_open).unwrap_or_else(PoisonError::into_inner);
        match (&shown.ending, &shown.tools) {
            (Some(ending), _) => Err(ending.clone()),
            (None, tools) => Ok(tools.clone().unwrap_or_default()),
        }
    }

    pub(crate) fn wait_ended(&self) -> Ending {
        let runs = |shown: &mut Shown| shown.ending.is_none();
        let shown = self.changed.wait_while(self.lock(), runs).unwrap_or_else(PoisonError::into_inner);
        shown.ending.clone().unwrap_or(Ending::Stopped)
    }

    /// The first ending stays.
    pub(crate) fn end(&self, ending: Ending) {
        self.show(|shown| {
            shown.health = Health::Ended;
            shown.worker_pid = None;
            shown.ending.get_or_insert(ending);
        });
    }

    pub(crate) fn ends_with_this(self: &Arc<Self>) -> EndsWith {
        EndsWith(Arc::clone(self))
    }

    fn lock(&self) -> MutexGuard<'_, Shown> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Dropped, nobody waits any more.
pub(crate) struct EndsWith(Arc<Board>);

impl Drop for EndsWith {
    fn drop(&mut self) {
        self.0.end(Ending::Stopped);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_keeper_that_says_nothing_for_too_long_sleeps() {
        let mut board = Arc::into_inner(Board::new(String::new())).unwrap();
        assert!(board.is_awake());
        board.started = Instant::now().checked_sub(SLEEPS).unwrap();
        assert!(!board.is_awake());
        board.say_awake();
        assert!(board.is_awake());
    }
}
