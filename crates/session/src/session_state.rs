//! What others may know of a session while it lives, and how they end it.

use ringfence_core::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, MutexGuard};
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::state::{Change, EndReason, Impossible, State};
use ringfence_core::now_ms;

pub(crate) struct SessionState {
    life: Mutex<Life>,
    /// In seconds since the epoch, for people.
    last_used: AtomicU64,
    /// In milliseconds of a clock that nobody sets: idle sessions expire by it, and those used last are evicted last.
    last_used_ms: AtomicU64,
    /// Cancelled only after the reason is left in the state.
    stop: CancellationToken,
}

struct Life {
    state: State,
    /// Calls that wait or run.
    calls: usize,
}

/// A call that waits or runs: as long as there is one, the session is not idle.
pub(crate) struct Visit(Arc<SessionState>);

impl Drop for Visit {
    fn drop(&mut self) {
        self.0.life().calls -= 1;
    }
}

impl SessionState {
    pub(crate) fn new() -> Arc<Self> {
        let life = Mutex::new(Life { state: State::Starting, calls: 0 });
        let (last_used, last_used_ms) = (AtomicU64::new(now()), AtomicU64::new(steady_ms()));
        Arc::new(Self { life, last_used, last_used_ms, stop: CancellationToken::new() })
    }

    pub(crate) fn last_used_ms(&self) -> u64 {
        self.last_used_ms.load(Ordering::Relaxed)
    }

    /// In seconds since the epoch.
    pub(crate) fn last_used(&self) -> u64 {
        self.last_used.load(Ordering::Relaxed)
    }

    pub(crate) fn unused_for(&self) -> Duration {
        Duration::from_millis(steady_ms().saturating_sub(self.last_used_ms()))
    }

    pub(crate) fn touch(&self) {
        self.last_used.store(now(), Ordering::Relaxed);
        self.last_used_ms.store(steady_ms(), Ordering::Relaxed);
    }

    pub(crate) fn state(&self) -> State {
        self.life().state
    }

    /// Whether a call waits or runs, or the session is only starting.
    pub(crate) fn is_in_use(&self) -> bool {
        let life = self.life();
        life.calls > 0 || life.state != State::Idle
    }

    /// Whether it takes no more calls.
    pub(crate) fn is_ending(&self) -> bool {
        self.life().is_ending()
    }

    /// Announces a call. Nothing where the session is ending.
    pub(crate) fn enter(self: &Arc<Self>) -> Option<Visit> {
        let mut life = self.life();
        if life.is_ending() {
            return None;
        }
        life.calls += 1;
        Some(Visit(Arc::clone(self)))
    }

    pub(crate) fn change(&self, change: Change) -> Result<State, Impossible> {
        self.life().change(change)
    }

    /// Ends the session, whatever it does.
    pub(crate) fn end(&self, reason: EndReason) {
        // One that has ended already needs no end.
        if self.change(Change::Stop(reason)).is_ok() {
            self.halt();
        }
    }

    /// Lets the session take no more calls if none is in it or on its way; says whether that is so. Its task goes on
    /// until it is told by [`SessionState::halt`].
    pub(crate) fn retire_if_idle(&self, reason: EndReason) -> bool {
        let mut life = self.life();
        life.calls == 0 && life.state == State::Idle && life.change(Change::Stop(reason)).is_ok()
    }

    pub(crate) fn halt(&self) {
        self.stop.cancel();
    }

    pub(crate) async fn stopped(&self) {
        self.stop.cancelled().await;
    }

    fn life(&self) -> MutexGuard<'_, Life> {
        self.life.lock()
    }
}

impl Life {
    fn is_ending(&self) -> bool {
        matches!(self.state, State::Stopping(_) | State::Ended(_))
    }

    fn change(&mut self, change: Change) -> Result<State, Impossible> {
        self.state = self.state.after(change)?;
        Ok(self.state)
    }
}

/// Milliseconds since some moment of this server's life.
fn steady_ms() -> u64 {
    static BEGINNING: LazyLock<Instant> = LazyLock::new(Instant::now);
    u64::try_from(BEGINNING.elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// Seconds since the epoch.
pub(crate) fn now() -> u64 {
    now_ms() / 1000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_with_a_call_on_its_way_is_not_idle() {
        let shared = SessionState::new();
        assert!(!shared.retire_if_idle(EndReason::Evicted), "it is only starting");
        shared.change(Change::Started).unwrap();
        let visit = shared.enter().unwrap();
        assert!(!shared.retire_if_idle(EndReason::Evicted));
        drop(visit);
        assert!(shared.retire_if_idle(EndReason::Evicted));
        assert!(shared.enter().is_none(), "it takes no more calls");
        shared.end(EndReason::ShutDown);
        assert_eq!(shared.state(), State::Stopping(EndReason::Evicted), "the first reason stays");
    }
}
