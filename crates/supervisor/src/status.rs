//! The status of a supervised endpoint, readable from any thread.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use ringfence_core::sync::{Condvar, Mutex};
use serde::{Deserialize, Serialize};

/// The reason for the loss of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reason {
    #[serde(rename = "exited")]
    Exited,
    /// A probe or the preflight failed.
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
    /// A lost worker is being replaced; connections wait.
    Restarting,
    Ended,
}

/// The current status.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    pub endpoint: String,
    /// The process of the supervisor.
    pub pid: u32,
    pub health: Health,
    pub worker_pid: Option<u32>,
    pub restarts: u32,
    /// The reason for the last loss of a worker.
    pub last_reason: Option<Reason>,
    pub last_detail: Option<String>,
    pub uptime_s: u64,
}

/// The reason why the supervisor gave up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GaveUp {
    #[serde(rename = "error")]
    pub detail: String,
    pub reason: Reason,
    /// Number of restarts.
    #[serde(rename = "count")]
    pub restarts: u32,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    /// The last lines of the last worker's stderr.
    pub stderr: Vec<String>,
    pub endpoint: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    Stopped,
    GaveUp(Box<GaveUp>),
}

/// Time without a heartbeat after which the supervisor thread is considered blocked.
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(10);

/// The status, written by the supervisor thread and read by others.
pub(crate) struct SharedStatus {
    endpoint: String,
    started: Instant,
    /// Time of the last heartbeat, in milliseconds since `started`.
    last_heartbeat_ms: AtomicU64,
    state: Mutex<State>,
    changed: Condvar,
}

pub(crate) struct State {
    pub(crate) health: Health,
    pub(crate) worker_pid: Option<u32>,
    pub(crate) restarts: u32,
    pub(crate) last: Option<(Reason, String)>,
    /// Set once a worker is ready.
    pub(crate) tools: Option<Vec<String>>,
    ending: Option<Ending>,
}

impl SharedStatus {
    pub(crate) fn new(endpoint: String) -> Arc<Self> {
        let state =
            State { health: Health::Starting, worker_pid: None, restarts: 0, last: None, tools: None, ending: None };
        Arc::new(Self {
            endpoint,
            started: Instant::now(),
            last_heartbeat_ms: AtomicU64::new(0),
            state: Mutex::new(state),
            changed: Condvar::new(),
        })
    }

    pub(crate) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Called periodically on the supervisor thread.
    pub(crate) fn record_heartbeat(&self) {
        let now = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_heartbeat_ms.store(now, Ordering::Relaxed);
    }

    pub(crate) fn is_responsive(&self) -> bool {
        let last = Duration::from_millis(self.last_heartbeat_ms.load(Ordering::Relaxed));
        self.started.elapsed().saturating_sub(last) < HEARTBEAT_TIMEOUT
    }

    pub(crate) fn update(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    pub(crate) fn snapshot(&self) -> Status {
        let state = self.lock();
        Status {
            endpoint: self.endpoint.clone(),
            pid: std::process::id(),
            health: state.health,
            worker_pid: state.worker_pid,
            restarts: state.restarts,
            last_reason: state.last.as_ref().map(|(reason, _)| *reason),
            last_detail: state.last.as_ref().map(|(_, detail)| detail.clone()),
            uptime_s: self.started.elapsed().as_secs(),
        }
    }

    pub(crate) fn wait_ready(&self) -> Result<Vec<String>, Ending> {
        let is_starting = |state: &mut State| state.tools.is_none() && state.ending.is_none();
        let state = self.changed.wait_while(self.lock(), is_starting);
        match (&state.ending, &state.tools) {
            (Some(ending), _) => Err(ending.clone()),
            (None, tools) => Ok(tools.clone().unwrap_or_default()),
        }
    }

    pub(crate) fn wait_ended(&self) -> Ending {
        let is_running = |state: &mut State| state.ending.is_none();
        let state = self.changed.wait_while(self.lock(), is_running);
        state.ending.clone().unwrap_or(Ending::Stopped)
    }

    /// Sets the ending, unless one is set already.
    pub(crate) fn end(&self, ending: Ending) {
        self.update(|state| {
            state.health = Health::Ended;
            state.worker_pid = None;
            state.ending.get_or_insert(ending);
        });
    }

    pub(crate) fn end_on_drop(self: &Arc<Self>) -> EndOnDrop {
        EndOnDrop(Arc::clone(self))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

/// Sets the ending when it is dropped, so that waiting threads wake up.
pub(crate) struct EndOnDrop(Arc<SharedStatus>);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        self.0.end(Ending::Stopped);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn supervisor_without_heartbeat_is_not_responsive() {
        let mut status = Arc::into_inner(SharedStatus::new(String::new())).unwrap();
        assert!(status.is_responsive());
        status.started = Instant::now().checked_sub(HEARTBEAT_TIMEOUT).unwrap();
        assert!(!status.is_responsive());
        status.record_heartbeat();
        assert!(status.is_responsive());
    }
}
