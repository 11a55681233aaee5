//! Decides when a worker is killed, restarted or given up: events in, actions out. It performs no I/O and reads no clock.
//!
//! A worker is *ready* once its preflight has passed, and *proven* by the first probe after that. If the first worker never
//! becomes ready, it is not restarted: no client knows the endpoint yet, and the caller should see the error at once.

use std::time::Duration;

use tokio::time::Instant;

/// Number of consecutive failed probes after which a worker is killed.
const MAX_FAILED_PROBES: u32 = 3;

/// Time of health after which the count of restarts starts anew.
const RESTARTS_RESET_AFTER: Duration = Duration::from_secs(600);

const FIRST_DELAY: Duration = Duration::from_millis(100);
const MAX_DELAY: Duration = Duration::from_secs(10);

/// The outcome of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProbeOutcome {
    Passed,
    /// The worker responded that it is overloaded. It is alive, and a restart would not help.
    Busy,
    Failed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// The worker has passed its preflight.
    Ready,
    Probed(ProbeOutcome),
    /// The worker exited, was killed after failed probes, or did not become ready.
    Lost,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    Continue,
    /// Kill the worker, then report [`Event::Lost`].
    Kill,
    Restart {
        delay: Duration,
    },
    GiveUp,
}

pub(crate) struct RestartPolicy {
    max_restarts: u32,
    /// Restarts since the count was last reset.
    restarts_used: u32,
    /// Restarts in total.
    restarts: u32,
    has_been_ready: bool,
    /// Workers lost since the last proven one.
    consecutive_losses: u32,
    failed_probes: u32,
    healthy_since: Option<Instant>,
}

impl RestartPolicy {
    pub(crate) fn new(max_restarts: u32) -> Self {
        Self {
            max_restarts,
            restarts_used: 0,
            restarts: 0,
            has_been_ready: false,
            consecutive_losses: 0,
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

    pub(crate) fn on_event(&mut self, event: Event, now: Instant) -> Action {
        if self.healthy_since.is_some_and(|since| now.duration_since(since) >= RESTARTS_RESET_AFTER) {
            self.restarts_used = 0;
        }
        match event {
            Event::Ready => {
                self.has_been_ready = true;
                self.healthy_since = Some(now);
                Action::Continue
            }
            Event::Probed(ProbeOutcome::Passed) => {
                self.failed_probes = 0;
                self.consecutive_losses = 0;
                self.healthy_since.get_or_insert(now);
                Action::Continue
            }
            Event::Probed(ProbeOutcome::Busy) => {
                self.failed_probes = 0;
                self.consecutive_losses = 0;
                Action::Continue
            }
            Event::Probed(ProbeOutcome::Failed) => {
                self.failed_probes += 1;
                self.healthy_since = None;
                if self.failed_probes < MAX_FAILED_PROBES { Action::Continue } else { Action::Kill }
            }
            Event::Lost => self.on_loss(),
        }
    }

    fn on_loss(&mut self) -> Action {
        self.failed_probes = 0;
        self.healthy_since = None;
        if !self.has_been_ready || self.restarts_used == self.max_restarts {
            return Action::GiveUp;
        }
        self.restarts_used += 1;
        self.restarts += 1;
        self.consecutive_losses += 1;
        Action::Restart { delay: restart_delay(self.consecutive_losses) }
    }
}

/// Returns the delay before a restart: none for the first loss, then doubling.
fn restart_delay(consecutive_losses: u32) -> Duration {
    match consecutive_losses {
        0 | 1 => Duration::ZERO,
        more => FIRST_DELAY.saturating_mul(1_u32.checked_shl(more - 2).unwrap_or(u32::MAX)).min(MAX_DELAY),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ready(max_restarts: u32) -> RestartPolicy {
        let mut policy = RestartPolicy::new(max_restarts);
        assert_eq!(policy.on_event(Event::Ready, Instant::now()), Action::Continue);
        policy
    }

    fn probe(policy: &mut RestartPolicy, outcome: ProbeOutcome) -> Action {
        policy.on_event(Event::Probed(outcome), Instant::now())
    }

    fn lose(policy: &mut RestartPolicy) -> Action {
        policy.on_event(Event::Lost, Instant::now())
    }

    #[tokio::test(start_paused = true)]
    async fn first_worker_that_is_never_ready_is_not_restarted() {
        assert_eq!(lose(&mut RestartPolicy::new(20)), Action::GiveUp);
    }

    #[tokio::test(start_paused = true)]
    async fn first_restart_is_immediate_and_later_delays_double() {
        let mut policy = ready(20);
        let delays: Vec<u128> = (0..10)
            .map(|_| match lose(&mut policy) {
                Action::Restart { delay } => delay.as_millis(),
                action => panic!("{action:?}"),
            })
            .collect();
        assert_eq!(delays, [0, 100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]);
        // A worker that becomes ready and then dies does not reset the delay.
        policy.on_event(Event::Ready, Instant::now());
        assert_eq!(lose(&mut policy), Action::Restart { delay: MAX_DELAY });
        policy.on_event(Event::Ready, Instant::now());
        probe(&mut policy, ProbeOutcome::Passed);
        assert_eq!(lose(&mut policy), Action::Restart { delay: Duration::ZERO });
        assert_eq!(lose(&mut policy), Action::Restart { delay: FIRST_DELAY });
        // An overloaded worker counts as proven.
        policy.on_event(Event::Ready, Instant::now());
        probe(&mut policy, ProbeOutcome::Busy);
        assert_eq!(lose(&mut policy), Action::Restart { delay: Duration::ZERO });
    }

    #[tokio::test(start_paused = true)]
    async fn worker_is_killed_after_three_consecutive_failed_probes() {
        let mut policy = ready(20);
        for outcome in [
            ProbeOutcome::Failed,
            ProbeOutcome::Failed,
            ProbeOutcome::Passed,
            ProbeOutcome::Failed,
            ProbeOutcome::Failed,
            ProbeOutcome::Busy,
        ] {
            assert_eq!(probe(&mut policy, outcome), Action::Continue);
        }
        assert_eq!(probe(&mut policy, ProbeOutcome::Failed), Action::Continue);
        assert_eq!(probe(&mut policy, ProbeOutcome::Failed), Action::Continue);
        assert_eq!(probe(&mut policy, ProbeOutcome::Failed), Action::Kill);
        assert_eq!(lose(&mut policy), Action::Restart { delay: Duration::ZERO });
        assert_eq!(policy.failed_probes(), 0, "the count starts anew for the next worker");
    }

    #[tokio::test(start_paused = true)]
    async fn restart_count_is_reset_after_ten_minutes_of_health() {
        let mut policy = ready(2);
        lose(&mut policy);
        lose(&mut policy);
        policy.on_event(Event::Ready, Instant::now());
        tokio::time::advance(RESTARTS_RESET_AFTER.checked_sub(Duration::from_millis(1)).unwrap()).await;
        // A failed probe restarts the time of health.
        probe(&mut policy, ProbeOutcome::Failed);
        probe(&mut policy, ProbeOutcome::Passed);
        tokio::time::advance(Duration::from_secs(1)).await;
        probe(&mut policy, ProbeOutcome::Passed);
        assert_eq!(policy.restarts_used, 2);
        tokio::time::advance(RESTARTS_RESET_AFTER).await;
        assert!(matches!(lose(&mut policy), Action::Restart { .. }));
        assert!(matches!(lose(&mut policy), Action::Restart { .. }));
        assert_eq!(lose(&mut policy), Action::GiveUp);
        assert_eq!(policy.restarts(), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn first_loss_is_final_without_restarts() {
        assert_eq!(lose(&mut ready(0)), Action::GiveUp);
    }
}
