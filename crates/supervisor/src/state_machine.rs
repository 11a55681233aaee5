//! The life of a supervised worker: what has happened in, what is to be done out. It starts nothing and asks no clock.
//!
//! A worker is *ready* once the preflight has passed, *proven* by the first probe after that. Before a first worker was
//! ready nothing is tried again: nobody has the endpoint yet, and whoever waits for it is better told.

use std::time::Duration;

use tokio::time::Instant;

/// A worker that does not answer so many probes in a row is stale.
const MOST_FAILED_PROBES: u32 = 3;

/// After so much health, all restarts are to be had again.
const HEALTH_THAT_EARNS: Duration = Duration::from_secs(600);

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// What came of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pulse {
    Good,
    /// It has too much to do to answer, and said so: it lives, and to kill it would help nobody.
    Busy,
    Failed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// The preflight has passed.
    Ready,
    Probed(Pulse),
    /// The worker has exited, was killed for being stale, or did not become ready.
    Lost,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    GoOn,
    /// The worker is stale: end it, and come back with [`Event::Lost`].
    Kill,
    Restart {
        after: Duration,
    },
    GiveUp,
}

pub(crate) struct Life {
    most_restarts: u32,
    /// Restarts since all of them were to be had.
    spent: u32,
    /// Restarts altogether.
    restarts: u32,
    has_been_ready: bool,
    /// Workers lost since one was proven.
    lost_in_a_row: u32,
    failed_probes: u32,
    healthy_since: Option<Instant>,
}

impl Life {
    pub(crate) fn new(most_restarts: u32) -> Self {
        Self {
            most_restarts,
            spent: 0,
            restarts: 0,
            has_been_ready: false,
            lost_in_a_row: 0,
            failed_probes: 0,
            healthy_since: None,
        }
    }

    pub(crate) fn restarts(&self) -> u32 {
        self.restarts
    }

    pub(crate) fn has_been_ready(&self) -> bool {
        self.has_been_ready
    }

    pub(crate) fn failed_probes(&self) -> u32 {
        self.failed_probes
    }

    pub(crate) fn on(&mut self, event: Event, now: Instant) -> Step {
        if self.healthy_since.is_some_and(|since| now.duration_since(since) >= HEALTH_THAT_EARNS) {
            self.spent = 0;
        }
        match event {
            Event::Ready => {
                self.has_been_ready = true;
                self.healthy_since = Some(now);
                Step::GoOn
            }
            Event::Probed(Pulse::Good) => {
                self.failed_probes = 0;
                self.lost_in_a_row = 0;
                self.healthy_since.get_or_insert(now);
                Step::GoOn
            }
            Event::Probed(Pulse::Busy) => {
                self.failed_probes = 0;
                self.lost_in_a_row = 0;
                Step::GoOn
            }
            Event::Probed(Pulse::Failed) => {
                self.failed_probes += 1;
                self.healthy_since = None;
                if self.failed_probes < MOST_FAILED_PROBES { Step::GoOn } else { Step::Kill }
            }
            Event::Lost => self.lost(),
        }
    }

    fn lost(&mut self) -> Step {
        self.failed_probes = 0;
        self.healthy_since = None;
        if !self.has_been_ready || self.spent == self.most_restarts {
            return Step::GiveUp;
        }
        self.spent += 1;
        self.restarts += 1;
        self.lost_in_a_row += 1;
        Step::Restart { after: pause(self.lost_in_a_row) }
    }
}

/// The first is replaced at once.
fn pause(lost_in_a_row: u32) -> Duration {
    match lost_in_a_row {
        0 | 1 => Duration::ZERO,
        more => FIRST_PAUSE.saturating_mul(1_u32.checked_shl(more - 2).unwrap_or(u32::MAX)).min(LONGEST_PAUSE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ready(most_restarts: u32) -> Life {
        let mut life = Life::new(most_restarts);
        assert_eq!(life.on(Event::Ready, Instant::now()), Step::GoOn);
        life
    }

    fn probe(life: &mut Life, pulse: Pulse) -> Step {
        life.on(Event::Probed(pulse), Instant::now())
    }

    fn lose(life: &mut Life) -> Step {
        life.on(Event::Lost, Instant::now())
    }

    #[tokio::test(start_paused = true)]
    async fn a_first_worker_that_never_was_ready_is_not_tried_again() {
        assert_eq!(lose(&mut Life::new(20)), Step::GiveUp);
    }

    #[tokio::test(start_paused = true)]
    async fn a_lost_worker_is_replaced_at_once_and_then_more_and_more_slowly() {
        let mut life = ready(20);
        let pauses: Vec<u128> = (0..10)
            .map(|_| match lose(&mut life) {
                Step::Restart { after } => after.as_millis(),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(pauses, [0, 100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]);
        // To be ready is not enough: one that dies soon after would be started as fast as it dies.
        life.on(Event::Ready, Instant::now());
        assert_eq!(lose(&mut life), Step::Restart { after: LONGEST_PAUSE });
        life.on(Event::Ready, Instant::now());
        probe(&mut life, Pulse::Good);
        assert_eq!(lose(&mut life), Step::Restart { after: Duration::ZERO });
        assert_eq!(lose(&mut life), Step::Restart { after: FIRST_PAUSE });
        // One that has too much to do has lived to its first probe.
        life.on(Event::Ready, Instant::now());
        probe(&mut life, Pulse::Busy);
        assert_eq!(lose(&mut life), Step::Restart { after: Duration::ZERO });
    }

    #[tokio::test(start_paused = true)]
    async fn three_failed_probes_in_a_row_are_too_many() {
        let mut life = ready(20);
        for pulse in [Pulse::Failed, Pulse::Failed, Pulse::Good, Pulse::Failed, Pulse::Failed, Pulse::Busy] {
            assert_eq!(probe(&mut life, pulse), Step::GoOn);
        }
        assert_eq!(probe(&mut life, Pulse::Failed), Step::GoOn);
        assert_eq!(probe(&mut life, Pulse::Failed), Step::GoOn);
        assert_eq!(probe(&mut life, Pulse::Failed), Step::Kill);
        assert_eq!(lose(&mut life), Step::Restart { after: Duration::ZERO });
        assert_eq!(life.failed_probes(), 0, "the next worker has all its probes");
    }

    #[tokio::test(start_paused = true)]
    async fn restarts_are_earned_back_by_ten_minutes_of_health() {
        let mut life = ready(2);
        lose(&mut life);
        lose(&mut life);
        life.on(Event::Ready, Instant::now());
        tokio::time::advance(HEALTH_THAT_EARNS.checked_sub(Duration::from_millis(1)).unwrap()).await;
        // Health that is broken counts from its beginning.
        probe(&mut life, Pulse::Failed);
        probe(&mut life, Pulse::Good);
        tokio::time::advance(Duration::from_secs(1)).await;
        probe(&mut life, Pulse::Good);
        assert_eq!(life.spent, 2);
        tokio::time::advance(HEALTH_THAT_EARNS).await;
        assert!(matches!(lose(&mut life), Step::Restart { .. }));
        assert!(matches!(lose(&mut life), Step::Restart { .. }));
        assert_eq!(lose(&mut life), Step::GiveUp);
        assert_eq!(life.restarts(), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn without_restarts_the_first_loss_is_the_last() {
        assert_eq!(lose(&mut ready(0)), Step::GiveUp);
    }
}
