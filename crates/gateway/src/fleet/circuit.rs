//! Spares callers the wait for a connection over which calls fail one after the other.
//!
//! It belongs to one connection: a server that is connected anew starts with a closed circuit. Whether the server is
//! down is not decided here but by its health.

use std::time::Duration;

use tokio::time::Instant;

/// So many calls that fail in a row, and alike, open the circuit.
const MAX_FAILURES: u32 = 5;

/// How long no call is let through; also how long the one that is let through afterwards may keep the others waiting.
const OPEN_TIME: Duration = Duration::from_secs(15);

/// How a call over a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallEnd {
    /// The server said something, be it an error.
    Responded,
    NoResponse(NoResponse),
}

/// Why nothing came back. Only failures that are alike count together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoResponse {
    /// The connection failed.
    ConnectionLost,
    /// It did not come in time.
    TimedOut,
    /// The way to the server was barred.
    Unreachable,
}

#[derive(Debug, Default)]
pub(super) struct Circuit {
    failures: u32,
    /// Like which the failures are.
    last_cause: Option<NoResponse>,
    /// Set while the circuit is open: when the next call may try.
    next_call_at: Option<Instant>,
}

impl Circuit {
    /// Lets a call through, or says how long none will be.
    pub(super) fn admit(&mut self, now: Instant) -> Result<(), Duration> {
        if let Some(wait) = self.remaining_open_time(now) {
            return Err(wait);
        }
        // The one that tries. If it is never heard of again, the next may try after the same pause.
        if let Some(lets_through_at) = &mut self.next_call_at {
            *lets_through_at = now + OPEN_TIME;
        }
        Ok(())
    }

    /// How long no call is let through, if it is so.
    pub(super) fn remaining_open_time(&self, now: Instant) -> Option<Duration> {
        self.next_call_at.map(|at| at.saturating_duration_since(now)).filter(|wait| !wait.is_zero())
    }

    pub(super) fn failures(&self) -> u32 {
        self.failures
    }

    pub(super) fn report(&mut self, end: CallEnd, now: Instant) {
        match end {
            CallEnd::Responded => *self = Self::default(),
            CallEnd::NoResponse(why) => {
                let is_other = self.last_cause.replace(why) != Some(why);
                // Once the circuit is open, no failure closes it.
                if is_other && self.next_call_at.is_none() {
                    self.failures = 0;
                }
                self.failures = self.failures.saturating_add(1);
                if self.failures >= MAX_FAILURES {
                    self.next_call_at = Some(now + OPEN_TIME);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOST: CallEnd = CallEnd::NoResponse(NoResponse::ConnectionLost);
    const LATE: CallEnd = CallEnd::NoResponse(NoResponse::TimedOut);

    fn open_circuit(now: Instant) -> Circuit {
        let mut circuit = Circuit::default();
        for _ in 0..MAX_FAILURES {
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
            for _ in 1..MAX_FAILURES {
                circuit.report(LOST, now);
            }
            circuit.report(CallEnd::Responded, now);
            assert_eq!(circuit.admit(now), Ok(()));
        }
        assert_eq!(open_circuit(now).admit(now), Err(OPEN_TIME));
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
        assert_eq!((circuit.admit(now), circuit.failures()), (Err(OPEN_TIME), MAX_FAILURES));
        let later = now + OPEN_TIME;
        assert_eq!(circuit.admit(later), Ok(()));
        circuit.report(LOST, later + OPEN_TIME / 2);
        assert_eq!(circuit.admit(later + OPEN_TIME), Err(OPEN_TIME / 2), "the one that tried has failed, however");
    }

    #[test]
    fn one_call_tries_after_the_pause() {
        let now = Instant::now();
        let mut circuit = open_circuit(now);
        assert_eq!(circuit.admit(now + OPEN_TIME / 2), Err(OPEN_TIME / 2));
        let later = now + OPEN_TIME;
        assert_eq!(circuit.admit(later), Ok(()));
        assert!(circuit.admit(later).is_err(), "only one");
        circuit.report(LOST, later);
        assert_eq!(circuit.admit(later), Err(OPEN_TIME), "it failed too");
        assert_eq!(circuit.admit(later + OPEN_TIME), Ok(()));
        circuit.report(CallEnd::Responded, later + OPEN_TIME);
        for _ in 0..10 {
            assert_eq!(circuit.admit(later + OPEN_TIME), Ok(()));
        }
    }

    #[test]
    fn a_call_that_is_never_heard_of_does_not_block_for_ever() {
        let now = Instant::now();
        let mut circuit = open_circuit(now);
        assert_eq!(circuit.admit(now + OPEN_TIME), Ok(()));
        assert!(circuit.admit(now + OPEN_TIME).is_err());
        assert_eq!(circuit.admit(now + 2 * OPEN_TIME), Ok(()));
    }
}
