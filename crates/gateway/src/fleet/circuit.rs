//! Spares callers the wait for a connection over which calls fail one after the other.
//!
//! It belongs to one connection: a server that is connected anew starts with a closed circuit. Whether the server is
//! down is not decided here but by its health.

use std::time::Duration;

use tokio::time::Instant;

/// So many calls that fail in a row, and alike, open the circuit.
const FAILURES: u32 = 5;

/// How long no call is let through; also how long the one that is let through afterwards may keep the others waiting.
const PAUSE: Duration = Duration::from_secs(15);

/// How a call over a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallEnd {
    /// The server said something, be it an error.
    Answered,
    Unanswered(NoAnswer),
}

/// Why nothing came back. Only failures that are alike count together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoAnswer {
    /// The connection failed.
    Lost,
    /// It did not come in time.
    Late,
    /// The way to the server was barred.
    Barred,
}

#[derive(Debug, Default)]
pub(super) struct Circuit {
    failures: u32,
    /// Like which the failures are.
    last: Option<NoAnswer>,
    /// Set while the circuit is open: when the next call may try.
    lets_through_at: Option<Instant>,
}

impl Circuit {
    /// Lets a call through, or says how long none will be.
    pub(super) fn admit(&mut self, now: Instant) -> Result<(), Duration> {
        if let Some(wait) = self.closed_for(now) {
            return Err(wait);
        }
        // The one that tries. If it is never heard of again, the next may try after the same pause.
        if let Some(lets_through_at) = &mut self.lets_through_at {
            *lets_through_at = now + PAUSE;
        }
        Ok(())
    }

    /// How long no call is let through, if it is so.
    pub(super) fn closed_for(&self, now: Instant) -> Option<Duration> {
        self.lets_through_at.map(|at| at.saturating_duration_since(now)).filter(|wait| !wait.is_zero())
    }

    pub(super) fn failures(&self) -> u32 {
        self.failures
    }

    pub(super) fn report(&mut self, end: CallEnd, now: Instant) {
        match end {
            CallEnd::Answered => *self = Self::default(),
            CallEnd::Unanswered(why) => {
                let is_other = self.last.replace(why) != Some(why);
                // Once the circuit is open, no failure closes it.
                if is_other && self.lets_through_at.is_none() {
                    self.failures = 0;
                }
                self.failures = self.failures.saturating_add(1);
                if self.failures >= FAILURES {
                    self.lets_through_at = Some(now + PAUSE);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOST: CallEnd = CallEnd::Unanswered(NoAnswer::Lost);
    const LATE: CallEnd = CallEnd::Unanswered(NoAnswer::Late);

    fn broken(now: Instant) -> Circuit {
        let mut circuit = Circuit::default();
        for _ in 0..FAILURES {
            assert_eq!(circuit.admit(now), Ok(()));
            circuit.report(LOST, now);
        }
        circuit
    }

    #[test]
    fn it_opens_after_failures_in_a_row_only() {
        let now = Instant::now();
        let mut circuit = Circuit::default();
        for _ in 0..20 {
            for _ in 1..FAILURES {
                circuit.report(LOST, now);
            }
            circuit.report(CallEnd::Answered, now);
            assert_eq!(circuit.admit(now), Ok(()));
        }
        assert_eq!(broken(now).admit(now), Err(PAUSE));
    }

    #[test]
    fn failures_that_are_not_alike_do_not_count_together() {
        let now = Instant::now();
        let mut circuit = Circuit::default();
        for end in [LOST, LATE, LOST, LATE, LOST, LATE, LATE, LATE, LATE] {
            circuit.report(end, now);
            assert_eq!(circuit.admit(now), Ok(()));
        }
        circuit.report(LATE, now);
        assert_eq!((circuit.admit(now), circuit.failures()), (Err(PAUSE), FAILURES));
        let later = now + PAUSE;
        assert_eq!(circuit.admit(later), Ok(()));
        circuit.report(LOST, later + PAUSE / 2);
        assert_eq!(circuit.admit(later + PAUSE), Err(PAUSE / 2), "the one that tried has failed, however");
    }

    #[test]
    fn one_call_tries_after_the_pause() {
        let now = Instant::now();
        let mut circuit = broken(now);
        assert_eq!(circuit.admit(now + PAUSE / 2), Err(PAUSE / 2));
        let later = now + PAUSE;
        assert_eq!(circuit.admit(later), Ok(()));
        assert!(circuit.admit(later).is_err(), "only one");
        circuit.report(LOST, later);
        assert_eq!(circuit.admit(later), Err(PAUSE), "it failed too");
        assert_eq!(circuit.admit(later + PAUSE), Ok(()));
        circuit.report(CallEnd::Answered, later + PAUSE);
        for _ in 0..10 {
            assert_eq!(circuit.admit(later + PAUSE), Ok(()));
        }
    }

    #[test]
    fn a_call_that_is_never_heard_of_does_not_block_for_ever() {
        let now = Instant::now();
        let mut circuit = broken(now);
        assert_eq!(circuit.admit(now + PAUSE), Ok(()));
        assert!(circuit.admit(now + PAUSE).is_err());
        assert_eq!(circuit.admit(now + 2 * PAUSE), Ok(()));
    }
}
