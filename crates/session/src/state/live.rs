//! The state that a live session shares between its task and its callers.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, MutexGuard};
use std::time::{Duration, Instant};

use ringfence_core::now_ms;
use ringfence_core::sync::Mutex;
use tokio_util::sync::CancellationToken;

use super::{Change, EndReason, InvalidChange, State};

/// The state of a live session and the time of its last use.
pub(crate) struct SessionState {
    lifecycle: Mutex<Lifecycle>,
    /// In seconds since the epoch, for people.
    last_used_s: AtomicU64,
    /// In milliseconds of a monotonic clock, for the idle timeout and for evictions.
    last_used_ms: AtomicU64,
    /// Cancelled after the state has become `Stopping`.
    stop: CancellationToken,
    /// Whether the instance continues without this server.
    is_left: AtomicBool,
}

struct Lifecycle {
    state: State,
    /// The number of calls that wait or run.
    users: usize,
}

/// A call that waits or runs. While one exists, the session is not idle.
pub(crate) struct UseGuard(Arc<SessionState>);

impl Drop for UseGuard {
    fn drop(&mut self) {
        self.0.lifecycle().users -= 1;
    }
}

impl SessionState {
    pub(crate) fn new() -> Arc<Self> {
        let lifecycle = Mutex::new(Lifecycle { state: State::Starting, users: 0 });
        let (last_used_s, last_used_ms) = (AtomicU64::new(now_s()), AtomicU64::new(monotonic_ms()));
        let (stop, is_left) = (CancellationToken::new(), AtomicBool::new(false));
        Arc::new(Self { lifecycle, last_used_s, last_used_ms, stop, is_left })
    }

    /// In milliseconds of a monotonic clock.
    pub(crate) fn last_used_ms(&self) -> u64 {
        self.last_used_ms.load(Ordering::Relaxed)
    }

    /// In seconds since the epoch.
    pub(crate) fn last_used_s(&self) -> u64 {
        self.last_used_s.load(Ordering::Relaxed)
    }

    pub(crate) fn unused_for(&self) -> Duration {
        Duration::from_millis(monotonic_ms().saturating_sub(self.last_used_ms()))
    }

    /// Records a use of the session, which postpones its idle timeout.
    pub(crate) fn touch(&self) {
        self.last_used_s.store(now_s(), Ordering::Relaxed);
        self.last_used_ms.store(monotonic_ms(), Ordering::Relaxed);
    }

    pub(crate) fn current(&self) -> State {
        self.lifecycle().state
    }

    /// Whether a call waits or runs, or the session is starting.
    pub(crate) fn is_in_use(&self) -> bool {
        let lifecycle = self.lifecycle();
        lifecycle.users > 0 || lifecycle.state != State::Idle
    }

    /// Whether the session accepts no more calls.
    pub(crate) fn is_ending(&self) -> bool {
        self.lifecycle().is_ending()
    }

    /// Announces a call, so that the session is not evicted before it. `None` if the session is ending.
    pub(crate) fn begin_use(self: &Arc<Self>) -> Option<UseGuard> {
        let mut lifecycle = self.lifecycle();
        if lifecycle.is_ending() {
            return None;
        }
        lifecycle.users += 1;
        Some(UseGuard(Arc::clone(self)))
    }

    pub(crate) fn change(&self, change: Change) -> Result<State, InvalidChange> {
        self.lifecycle().change(change)
    }

    /// Ends the session, whatever it does. Has no effect on a session that has ended.
    pub(crate) fn end(&self, reason: EndReason) {
        if self.change(Change::Stop(reason)).is_ok() {
            self.notify_stop();
        }
    }

    /// Ends the session in this server, and leaves its instance to the next one.
    pub(crate) fn leave(&self) {
        // A session that has been stopped is not left.
        if self.change(Change::Stop(EndReason::ShutDown)).is_ok() {
            self.is_left.store(true, Ordering::Release);
            self.notify_stop();
        }
    }

    /// Whether the instance continues without this server.
    pub(crate) fn is_left(&self) -> bool {
        self.is_left.load(Ordering::Acquire)
    }

    /// Closes an idle session for new calls. False if a call waits or runs. The session's task goes on until
    /// [`Self::notify_stop`].
    pub(crate) fn stop_if_idle(&self, reason: EndReason) -> bool {
        let mut lifecycle = self.lifecycle();
        lifecycle.users == 0 && lifecycle.state == State::Idle && lifecycle.change(Change::Stop(reason)).is_ok()
    }

    /// Makes the session's task end.
    pub(crate) fn notify_stop(&self) {
        self.stop.cancel();
    }

    /// Waits until the session is stopped.
    pub(crate) async fn stopped(&self) {
        self.stop.cancelled().await;
    }

    fn lifecycle(&self) -> MutexGuard<'_, Lifecycle> {
        self.lifecycle.lock()
    }
}

impl Lifecycle {
    fn is_ending(&self) -> bool {
        matches!(self.state, State::Stopping(_) | State::Ended(_))
    }

    fn change(&mut self, change: Change) -> Result<State, InvalidChange> {
        self.state = self.state.after(change)?;
        Ok(self.state)
    }
}

/// Milliseconds since the first call of this function.
fn monotonic_ms() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    u64::try_from(START.elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// Seconds since the epoch.
pub(crate) fn now_s() -> u64 {
    now_ms() / 1000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_with_an_announced_call_is_not_idle() {
        let state = SessionState::new();
        assert!(!state.stop_if_idle(EndReason::Evicted), "the session is starting");
        state.change(Change::Started).unwrap();
        let guard = state.begin_use().unwrap();
        assert!(!state.stop_if_idle(EndReason::Evicted));
        drop(guard);
        assert!(state.stop_if_idle(EndReason::Evicted));
        assert!(state.begin_use().is_none(), "a stopping session accepts no calls");
        state.end(EndReason::ShutDown);
        assert_eq!(state.current(), State::Stopping(EndReason::Evicted), "the first reason remains");
    }
}
