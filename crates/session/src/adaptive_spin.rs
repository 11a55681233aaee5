//! Waits awake for an answer that comes at once.
//!
//! To fall asleep and be woken takes as long as a short cell, where processors are idle; where they are not, whoever
//! waits awake keeps the interpreter from running. So both are tried, and the faster is chosen.
//! Other tasks run meanwhile and events are heard; and only who is alone waits so.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Some times what a short cell takes, most of which is the waking of its interpreter.
const MOST: Duration = Duration::from_micros(250);

/// What a cell takes at most for the next one to be waited for awake.
const SHORT: Duration = Duration::from_millis(1);

/// So many cells after each other are waited for in the better way, and then one in the other.
const TRIED_AGAIN_AFTER: u32 = 32;

/// So many looks are taken before other tasks have their turn, some microseconds.
const AT_ONCE: u32 = 8;

/// Cells that run now, of all sessions.
static RUNNING: AtomicUsize = AtomicUsize::new(0);

/// On one processor the interpreter could not run meanwhile.
static HAS_PROCESSORS: LazyLock<bool> =
    LazyLock::new(|| std::thread::available_parallelism().is_ok_and(|processors| processors.get() > 1));

/// A cell that runs, from its beginning to its end.
pub(crate) struct Attention {
    since: Instant,
    was_awake: bool,
    is_awake: bool,
    was_alone: bool,
}

impl Attention {
    pub(crate) fn begin(experience: &mut Experience) -> Self {
        let was_alone = RUNNING.fetch_add(1, Ordering::Relaxed) == 0;
        let is_awake = was_alone && *HAS_PROCESSORS && experience.chooses_to_be_awake();
        Self { since: Instant::now(), was_awake: is_awake, is_awake, was_alone }
    }

    pub(crate) fn is_awake(&self) -> bool {
        self.is_awake
    }

    /// Keeps awake until there is an answer, as long as it makes sense: also where that is taken by nobody. Cancel-safe.
    pub(crate) async fn hold(&mut self, has_answer: impl Fn() -> bool) {
        for look in 1.. {
            if self.since.elapsed() >= MOST || !self.was_alone {
                break;
            }
            if has_answer() {
                return;
            }
            // The interpreter may have been put on this very processor.
            std::thread::yield_now();
            if look % AT_ONCE == 0 {
                tokio::task::yield_now().await;
                self.was_alone = RUNNING.load(Ordering::Relaxed) == 1;
            }
        }
        self.is_awake = false;
    }

    /// The cell has ended.
    pub(crate) fn end(self, experience: &mut Experience) {
        experience.learn(self.was_alone.then_some(self.was_awake), self.since.elapsed());
    }
}

impl Drop for Attention {
    fn drop(&mut self) {
        RUNNING.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How long the cells of one interpreter have taken.
#[derive(Default)]
pub(crate) struct Experience {
    awake: Usual,
    asleep: Usual,
    was_short: bool,
    cells: u32,
}

impl Experience {
    fn chooses_to_be_awake(&mut self) -> bool {
        if !self.was_short {
            return false;
        }
        self.cells = self.cells.wrapping_add(1);
        let (Some(awake), Some(asleep)) = (self.awake.0, self.asleep.0) else { return self.asleep.0.is_some() };
        let is_better = awake < asleep;
        is_better != self.cells.is_multiple_of(TRIED_AGAIN_AFTER)
    }

    /// Nothing can be learned from a cell that was not alone, but how long they are.
    fn learn(&mut self, was_awake: Option<bool>, took: Duration) {
        if let Some(was_awake) = was_awake.filter(|_| self.was_short) {
            let usual = if was_awake { &mut self.awake } else { &mut self.asleep };
            usual.learn(took);
        }
        self.was_short = took < SHORT;
    }
}

/// What something takes when nothing gets in its way: soon less, and slowly more.
#[derive(Default)]
struct Usual(Option<Duration>);

impl Usual {
    fn learn(&mut self, took: Duration) {
        self.0 = Some(match self.0 {
            None => took,
            Some(usual) if took < usual => (usual + took) / 2,
            Some(usual) => usual + took.saturating_sub(usual).min(usual / 4) / 16,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of 1,000 cells are waited for awake, where both ways take so long.
    fn awake_of_1000(experience: &mut Experience, awake_us: u64, asleep_us: u64) -> usize {
        let cell = |number: u64| {
            let is_awake = experience.chooses_to_be_awake();
            // Now and then something gets in the way.
            let delay = if number.is_multiple_of(20) { 700 } else { 0 };
            let took = Duration::from_micros(delay + if is_awake { awake_us } else { asleep_us });
            experience.learn(Some(is_awake), took);
            is_awake
        };
        (0..1000).map(cell).filter(|is_awake| *is_awake).count()
    }

    #[test]
    fn the_faster_way_is_found_and_found_again() {
        let mut experience = Experience::default();
        assert!(awake_of_1000(&mut experience, 120, 170) > 850);
        assert!(awake_of_1000(&mut experience, 300, 200) < 150);
        assert!(awake_of_1000(&mut experience, 120, 170) > 600);
        // The first of them is not known to be one.
        assert!(awake_of_1000(&mut experience, 5000, 5000) <= 1, "not where cells are long");
    }

    #[tokio::test]
    async fn only_one_alone_waits_awake_and_not_for_long() {
        let attention = |since| Attention { since, was_awake: true, is_awake: true, was_alone: true };
        // However long it takes until it is asked.
        let far_off = Instant::now() + Duration::from_secs(3600);
        let (mut early, mut late) = (attention(far_off), attention(Instant::now().checked_sub(MOST).unwrap()));
        RUNNING.fetch_add(3, Ordering::Relaxed);
        assert!(!Attention::begin(&mut Experience { was_short: true, ..Experience::default() }).is_awake());
        early.hold(|| true).await;
        assert!(early.is_awake(), "it has its answer");
        early.hold(|| false).await;
        assert!(!early.is_awake(), "it is not alone");
        late.hold(|| true).await;
        assert!(!late.is_awake(), "an answer that nobody takes is not waited for either");
        RUNNING.fetch_sub(1, Ordering::Relaxed);
    }
}
