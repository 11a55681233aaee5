//! Spins for the result of a short cell instead of sleeping.
//!
//! On an idle host, to sleep and be woken costs as much as a short cell. On a busy host, a task that spins keeps the
//! interpreter from running. So both ways are measured, and the faster one is chosen.
//! Other tasks run and events are handled in between, and only the single running cell of the server spins.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Maximum time to spin: a few times the duration of a short cell, most of which is the wake-up of its interpreter.
const MAX_SPIN: Duration = Duration::from_micros(250);

/// Cells after one that took less than this may be waited for by spinning.
const SHORT_CELL: Duration = Duration::from_millis(1);

/// One of so many cells is waited for in the slower way, to measure it again.
const RETRY_PERIOD: u32 = 32;

/// The number of checks between two turns of other tasks; a few microseconds.
const CHECKS_PER_TURN: u32 = 8;

/// The number of running cells of all sessions.
static RUNNING_CELLS: AtomicUsize = AtomicUsize::new(0);

/// On a single processor the interpreter could not run while the host spins.
static IS_MULTIPROCESSOR: LazyLock<bool> =
    LazyLock::new(|| std::thread::available_parallelism().is_ok_and(|processors| processors.get() > 1));

/// The wait for one running cell.
pub(super) struct Spin {
    since: Instant,
    was_active: bool,
    is_active: bool,
    was_alone: bool,
}

impl Spin {
    /// Begins with a cell. Decides whether to spin for it.
    pub(super) fn begin(times: &mut CellTimes) -> Self {
        let was_alone = RUNNING_CELLS.fetch_add(1, Ordering::Relaxed) == 0;
        let is_active = was_alone && *IS_MULTIPROCESSOR && times.should_spin();
        Self { since: Instant::now(), was_active: is_active, is_active, was_alone }
    }

    pub(super) fn is_active(&self) -> bool {
        self.is_active
    }

    /// Spins until there is input or the maximum time is over, even if the input is never read. Cancel-safe.
    pub(super) async fn wait(&mut self, has_input: impl Fn() -> bool) {
        for check in 1.. {
            if self.since.elapsed() >= MAX_SPIN || !self.was_alone {
                break;
            }
            if has_input() {
                return;
            }
            // The interpreter may be scheduled on this processor.
            std::thread::yield_now();
            if check % CHECKS_PER_TURN == 0 {
                tokio::task::yield_now().await;
                self.was_alone = RUNNING_CELLS.load(Ordering::Relaxed) == 1;
            }
        }
        self.is_active = false;
    }

    /// Ends with the cell, and records its duration.
    pub(super) fn end(self, times: &mut CellTimes) {
        times.record(self.was_alone.then_some(self.was_active), self.since.elapsed());
    }
}

impl Drop for Spin {
    fn drop(&mut self) {
        RUNNING_CELLS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The durations of the cells of one interpreter.
#[derive(Default)]
pub(super) struct CellTimes {
    spinning: TypicalTime,
    sleeping: TypicalTime,
    was_short: bool,
    cells: u32,
}

impl CellTimes {
    fn should_spin(&mut self) -> bool {
        if !self.was_short {
            return false;
        }
        self.cells = self.cells.wrapping_add(1);
        let (Some(spinning), Some(sleeping)) = (self.spinning.0, self.sleeping.0) else {
            return self.sleeping.0.is_some();
        };
        let is_faster = spinning < sleeping;
        is_faster != self.cells.is_multiple_of(RETRY_PERIOD)
    }

    /// Records a cell. `was_active` is `None` if other cells ran at the same time: then the duration does not show which
    /// way is faster, only whether cells are short.
    fn record(&mut self, was_active: Option<bool>, duration: Duration) {
        if let Some(was_active) = was_active.filter(|_| self.was_short) {
            let typical = if was_active { &mut self.spinning } else { &mut self.sleeping };
            typical.record(duration);
        }
        self.was_short = duration < SHORT_CELL;
    }
}

/// The duration without disturbances: follows shorter durations fast, and longer ones slowly.
#[derive(Default)]
struct TypicalTime(Option<Duration>);

impl TypicalTime {
    fn record(&mut self, duration: Duration) {
        self.0 = Some(match self.0 {
            None => duration,
            Some(typical) if duration < typical => (typical + duration) / 2,
            Some(typical) => typical + duration.saturating_sub(typical).min(typical / 4) / 16,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns how many of 1,000 cells are waited for by spinning, if the two ways take so long.
    fn spins_of_1000(times: &mut CellTimes, spinning_us: u64, sleeping_us: u64) -> usize {
        let cell = |number: u64| {
            let spins = times.should_spin();
            // Some cells are disturbed.
            let delay = if number.is_multiple_of(20) { 700 } else { 0 };
            let duration = Duration::from_micros(delay + if spins { spinning_us } else { sleeping_us });
            times.record(Some(spins), duration);
            spins
        };
        (0..1000).map(cell).filter(|spins| *spins).count()
    }

    #[test]
    fn faster_way_is_chosen_and_changes_are_noticed() {
        let mut times = CellTimes::default();
        assert!(spins_of_1000(&mut times, 120, 170) > 850);
        assert!(spins_of_1000(&mut times, 300, 200) < 150);
        assert!(spins_of_1000(&mut times, 120, 170) > 600);
        // The first of them is not known to be long.
        assert!(spins_of_1000(&mut times, 5000, 5000) <= 1, "long cells are not waited for by spinning");
    }

    #[tokio::test]
    async fn only_a_single_cell_spins_and_only_for_a_limited_time() {
        let spin = |since| Spin { since, was_active: true, is_active: true, was_alone: true };
        // In the future, so that the test does not depend on the speed of this host.
        let far_off = Instant::now() + Duration::from_secs(3600);
        let (mut early, mut late) = (spin(far_off), spin(Instant::now().checked_sub(MAX_SPIN).unwrap()));
        RUNNING_CELLS.fetch_add(3, Ordering::Relaxed);
        assert!(!Spin::begin(&mut CellTimes { was_short: true, ..CellTimes::default() }).is_active());
        early.wait(|| true).await;
        assert!(early.is_active(), "there is input");
        early.wait(|| false).await;
        assert!(!early.is_active(), "other cells run");
        late.wait(|| true).await;
        assert!(!late.is_active(), "input that is never read does not prolong the time");
        RUNNING_CELLS.fetch_sub(1, Ordering::Relaxed);
    }
}
