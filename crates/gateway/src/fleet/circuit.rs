//! The circuit breaker of a connection: after several failed calls it refuses calls for a while, so that callers need
//! not wait for a timeout.
//!
//! A new connection starts with a closed circuit. Whether the server is down is decided by its health checks, not here.

use std::time::Duration;

use tokio::time::Instant;

/// Number of consecutive failures of the same kind that open the circuit.
const MAX_FAILURES: u32 = 5;

/// Time for which an open circuit refuses calls. Afterwards one call is allowed, and others are refused for the same time
/// unless that call succeeds earlier.
const OPEN_TIME: Duration = Duration::from_secs(15);

/// The end of a call over a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallEnd {
    /// The server has sent a response, which may be an error.
    Responded,
    NoResponse(NoResponse),
}

/// The reason for which there is no response. Only failures with the same reason are counted together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoResponse {
    ConnectionLost,
    TimedOut,
    /// The connection was refused.
    Unreachable,
}

#[derive(Debug, Default)]
pub(super) struct Circuit {
    failures: u32,
    /// The reason of the counted failures.
    last_cause: Option<NoResponse>,
    /// The time of the next allowed call. Set while the circuit is open.
    next_call_at: Option<Instant>,
}

impl Circuit {
    /// Allows a call, or returns the time for which none is allowed.
    pub(super) fn admit(&mut self, now: Instant) -> Result<(), Duration> {
        if let Some(remaining) = self.remaining_open_time(now) {
            return Err(remaining);
        }
        // This call tests the server. If its end is never reported, the next call is allowed after the same time.
        if let Some(lets_through_at) = &mut self.next_call_at {
            *lets_through_at = now + OPEN_TIME;
        }
        Ok(())
    }

    /// The time for which no call is allowed, if the circuit is open.
    pub(super) fn remaining_open_time(&self, now: Instant) -> Option<Duration> {
        self.next_call_at.map(|at| at.saturating_duration_since(now)).filter(|wait| !wait.is_zero())
    }

    pub(super) fn failures(&self) -> u32 {
        self.failures
    }

    pub(super) fn report(&mut self, end: CallEnd, now: Instant) {
        match end {
            CallEnd::Responded => *self = Self::default(),
            CallEnd::NoResponse(cause) => {
                let is_new_cause = self.last_cause.replace(cause) != Some(cause);
                // A failure does not close an open circuit.
                if is_new_cause && self.next_call_at.is_none() {
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
    fn circuit_opens_only_after_consecutive_failures() {
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
    fn failures_of_different_kinds_are_not_counted_together() {
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
        assert_eq!(circuit.admit(later + OPEN_TIME), Err(OPEN_TIME / 2), "the test call has failed");
    }

    #[test]
    fn one_call_is_allowed_after_the_open_time() {
        let now = Instant::now();
        let mut circuit = open_circuit(now);
        assert_eq!(circuit.admit(now + OPEN_TIME / 2), Err(OPEN_TIME / 2));
        let later = now + OPEN_TIME;
        assert_eq!(circuit.admit(later), Ok(()));
        assert!(circuit.admit(later).is_err(), "only one");
        circuit.report(LOST, later);
        assert_eq!(circuit.admit(later), Err(OPEN_TIME), "the test call has failed");
        assert_eq!(circuit.admit(later + OPEN_TIME), Ok(()));
        circuit.report(CallEnd::Responded, later + OPEN_TIME);
        for _ in 0..10 {
            assert_eq!(circuit.admit(later + OPEN_TIME), Ok(()));
        }
    }

    #[test]
    fn call_whose_end_is_never_reported_does_not_block_others() {
        let now = Instant::now();
        let mut circuit = open_circuit(now);
        assert_eq!(circuit.admit(now + OPEN_TIME), Ok(()));
        assert!(circuit.admit(now + OPEN_TIME).is_err());
        assert_eq!(circuit.admit(now + 2 * OPEN_TIME), Ok(()));
    }
}
