//! The identity of a supervisor: unique among all supervisors, also those of one process, and never confused with a
//! later process that has the same pid.
//!
//! It is a part of the names of launcher sockets, so that only servers of the same supervisor adopt their instances
//! while the supervisor lives.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::process_table::read_process;

/// The environment variable in which a supervisor passes its id to its worker.
pub const SUPERVISOR_ID_VARIABLE: &str = "RINGFENCE_SUPERVISOR_ID";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SupervisorId {
    pid: i32,
    /// The start time of the process, in the unit of `starttime` in `proc_pid_stat(5)`.
    started: u64,
    /// Distinguishes the supervisors of one process.
    number: u32,
}

impl SupervisorId {
    /// Returns an id that differs from every other one.
    pub fn unique() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let pid = rustix::process::getpid().as_raw_nonzero().get();
        let started = read_process(pid).map_or(0, |process| process.started);
        Self { pid, started, number: NEXT.fetch_add(1, Ordering::Relaxed) }
    }

    /// Returns the supervisor of this process, if it has one.
    pub fn of_this_process() -> Option<Self> {
        std::env::var(SUPERVISOR_ID_VARIABLE).ok()?.parse().ok()
    }

    /// Whether the process of the supervisor lives.
    pub fn is_alive(self) -> bool {
        read_process(self.pid).is_some_and(|process| process.is_alive && process.started == self.started)
    }
}

/// The text can be part of a file name.
impl fmt::Display for SupervisorId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{}.{}", self.pid, self.started, self.number)
    }
}

impl FromStr for SupervisorId {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut parts = text.split('.');
        let mut next = || parts.next().ok_or(());
        let (pid, started, number) = (next()?, next()?, next()?);
        let parsed = Self {
            pid: pid.parse().map_err(drop)?,
            started: started.parse().map_err(drop)?,
            number: number.parse().map_err(drop)?,
        };
        if parts.next().is_some() { Err(()) } else { Ok(parsed) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_survives_its_text_form_and_lives_with_its_process() {
        let (first, second) = (SupervisorId::unique(), SupervisorId::unique());
        assert_ne!(first, second);
        assert_eq!(first.to_string().parse(), Ok(first));
        assert!(first.is_alive() && second.is_alive());
        let earlier = SupervisorId { started: first.started.wrapping_sub(1), ..first };
        assert!(!earlier.is_alive(), "an earlier process had the same pid");
        for broken in ["", "1", "1.2", "1.2.3.4", "1.2.x", "1..3", "../1.2.3"] {
            assert_eq!(broken.parse::<SupervisorId>(), Err(()), "{broken}");
        }
    }
}
