//! The steps from the time limit of a call to its end: interrupts first, then the kill.

use std::pin::Pin;
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep};
use tokio_util::sync::CancellationToken;

use super::KILL_TIMEOUT;
use crate::api::Status;

/// The pause after each interrupt. An interrupt can be lost, so it is repeated before the kill; not immediately, because
/// the code may take a while to handle it.
const INTERRUPT_PAUSES: [Duration; 4] =
    [Duration::from_secs(1), Duration::from_millis(750), Duration::from_millis(750), Duration::from_millis(500)];

/// The reason to end a call early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EarlyEnd {
    Timeout,
    Cancelled,
}

impl EarlyEnd {
    pub(crate) fn status(self) -> Status {
        match self {
            Self::Timeout => Status::TimedOut,
            Self::Cancelled => Status::Cancelled,
        }
    }
}

/// The time limit and the cancellation of one call.
pub(crate) struct CallDeadline {
    /// One timer for the whole call, because a waiting call is polled again and again.
    timer: Pin<Box<Sleep>>,
    cancel: CancellationToken,
    /// The number of steps that were taken.
    steps: usize,
    /// Set with the first step.
    pub(crate) reason: Option<EarlyEnd>,
}

/// The next action to end a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DeadlineStep {
    /// Interrupt it. The number says how many interrupts were sent before.
    Interrupt(usize),
    Kill,
}

impl CallDeadline {
    pub(crate) fn new(timeout: Duration, cancel: CancellationToken) -> Self {
        Self { timer: Box::pin(sleep(timeout)), cancel, steps: 0, reason: None }
    }

    /// Whether the last step was the kill.
    pub(crate) fn has_killed(&self) -> bool {
        self.steps > INTERRUPT_PAUSES.len()
    }

    /// Waits until a step is due. Cancel-safe.
    pub(crate) async fn next_step(&mut self) -> DeadlineStep {
        if self.reason.is_some() {
            self.timer.as_mut().await;
        } else {
            self.reason = Some(tokio::select! {
                () = self.timer.as_mut() => EarlyEnd::Timeout,
                () = self.cancel.cancelled() => EarlyEnd::Cancelled,
            });
        }
        let previous = self.steps;
        self.steps += 1;
        let Some(pause) = INTERRUPT_PAUSES.get(previous) else {
            self.timer.as_mut().reset(Instant::now() + KILL_TIMEOUT);
            return DeadlineStep::Kill;
        };
        self.timer.as_mut().reset(Instant::now() + *pause);
        DeadlineStep::Interrupt(previous)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn interrupts_precede_the_kill() {
        let mut deadline = CallDeadline::new(Duration::from_secs(30), CancellationToken::new());
        let start = Instant::now();
        for previous in 0..INTERRUPT_PAUSES.len() {
            assert_eq!(deadline.next_step().await, DeadlineStep::Interrupt(previous));
        }
        assert_eq!(deadline.next_step().await, DeadlineStep::Kill);
        assert_eq!((start.elapsed(), deadline.reason), (Duration::from_secs(33), Some(EarlyEnd::Timeout)));
    }

    #[tokio::test(start_paused = true)]
    async fn cancelled_call_is_interrupted_immediately() {
        let cancel = CancellationToken::new();
        let mut deadline = CallDeadline::new(Duration::from_secs(30), cancel.clone());
        cancel.cancel();
        let start = Instant::now();
        assert_eq!(deadline.next_step().await, DeadlineStep::Interrupt(0));
        assert_eq!((start.elapsed(), deadline.reason), (Duration::ZERO, Some(EarlyEnd::Cancelled)));
    }
}
