//! Waits awake for an answer that comes at once.
//!
//! To fall asleep and be woken takes as long as a short cell. Whoever waits awake lets all other tasks run meanwhile and
//! hears of all events, and is alone in it: where more goes on, processors have better things to do.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Some times what a short cell takes, most of which is the waking of its interpreter.
const MOST: Duration = Duration::from_micros(250);

/// Cells that run now, of all sessions.
static RUNNING: AtomicUsize = AtomicUsize::new(0);

/// On one processor the interpreter could not run meanwhile.
static HAS_PROCESSORS: LazyLock<bool> =
    LazyLock::new(|| std::thread::available_parallelism().is_ok_and(|processors| processors.get() > 1));

/// A cell that runs, from its beginning to its end.
pub(super) struct Attention {
    since: Instant,
    is_awake: bool,
}

impl Attention {
    /// Awake only where the cell before was short as well.
    pub(super) fn begin(was_short: bool) -> Self {
        RUNNING.fetch_add(1, Ordering::Relaxed);
        Self { since: Instant::now(), is_awake: was_short && *HAS_PROCESSORS }
    }

    pub(super) fn is_awake(&self) -> bool {
        self.is_awake
    }

    /// Whether the cell has been short so far.
    pub(super) fn is_short(&self) -> bool {
        self.since.elapsed() < MOST
    }

    /// Keeps awake as long as it makes sense. Cancel-safe.
    pub(super) async fn hold(&mut self) {
        while self.is_short() && RUNNING.load(Ordering::Relaxed) == 1 {
            tokio::task::yield_now().await;
        }
        self.is_awake = false;
    }
}

impl Drop for Attention {
    fn drop(&mut self) {
        RUNNING.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn ends_at_once(attention: &mut Attention) -> bool {
        tokio::select! {
            biased;
            () = attention.hold() => !attention.is_awake(),
            () = std::future::ready(()) => false,
        }
    }

    #[tokio::test]
    async fn only_one_alone_waits_awake_and_not_for_long() {
        let (mut one, mut other) = (Attention::begin(true), Attention::begin(false));
        assert!(!other.is_awake());
        assert!(ends_at_once(&mut one).await && ends_at_once(&mut other).await);
        drop(other);
        let mut late = Attention::begin(true);
        late.since -= MOST;
        assert!(!late.is_short());
        assert!(ends_at_once(&mut late).await);
    }
}
