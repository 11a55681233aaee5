//! Limits how often a sandbox can make the mirror send requests to a registry.
//!
//! Each request sends a name that a guest chose, so an unlimited number would be a channel out of the sandbox.
//! The limits are high enough for the installation of a large project.

use std::time::Duration;

use ringfence_core::sync::Mutex;
use tokio::time::{Instant, sleep};

/// Bytes of a download that cost as much as one request.
const BYTES_PER_UNIT: u64 = 4 << 20;
/// The cost of a name that the registry does not know, which only a guest can have chosen.
pub(super) const UNKNOWN_NAME_COST: f64 = 19.0;

/// A budget of requests that refills over time.
#[derive(Debug)]
pub(super) struct Budget {
    capacity: f64,
    per_second: f64,
    state: Mutex<(f64, Instant)>,
}

impl Budget {
    pub(super) fn new(capacity: u32, per_second: u32) -> Self {
        let capacity = f64::from(capacity);
        Self { capacity, per_second: f64::from(per_second), state: Mutex::new((capacity, Instant::now())) }
    }

    /// The budget of one sandbox.
    pub(super) fn of_sandbox() -> Self {
        Self::new(3000, 10)
    }

    /// The budget of all sandboxes of this process together.
    pub(super) fn of_process() -> Self {
        Self::new(12_000, 50)
    }

    /// Takes one request, and waits for it if needed. Returns whether there was one before the timeout.
    pub(super) async fn take(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        loop {
            let missing = {
                let mut state = self.refilled();
                if state.0 >= 1.0 {
                    state.0 -= 1.0;
                    return true;
                }
                1.0 - state.0
            };
            let wait = Duration::from_secs_f64((missing / self.per_second).clamp(0.01, 3600.0));
            if Instant::now() + wait > deadline {
                return false;
            }
            sleep(wait).await;
        }
    }

    /// Takes a cost that has already occurred, even if the budget becomes negative.
    pub(super) fn charge(&self, cost: f64) {
        let mut state = self.refilled();
        state.0 = (state.0 - cost).max(-self.capacity);
    }

    fn refilled(&self) -> std::sync::MutexGuard<'_, (f64, Instant)> {
        let mut state = self.state.lock();
        let now = Instant::now();
        let refill = now.duration_since(state.1).as_secs_f64() * self.per_second;
        *state = ((state.0 + refill).min(self.capacity), now);
        state
    }
}

/// Returns the cost of downloaded bytes.
#[allow(clippy::cast_precision_loss)]
pub(super) fn cost_of_bytes(bytes: u64) -> f64 {
    (bytes / BYTES_PER_UNIT) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn budget_is_limited_and_refills() {
        let budget = Budget::new(2, 1);
        assert!(budget.take(Duration::ZERO).await && budget.take(Duration::ZERO).await);
        assert!(!budget.take(Duration::from_millis(500)).await);
        assert!(budget.take(Duration::from_secs(2)).await);
        budget.charge(100.0);
        assert!(!budget.take(Duration::from_millis(2900)).await, "the debt is limited, but paid");
        sleep(Duration::from_secs(10)).await;
        assert!(budget.take(Duration::ZERO).await);
    }
}
