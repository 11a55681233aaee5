//! Who supervises: told from every other supervisor, also from those of the same process, and from a process that has
//! got its number since.
//!
//! It is part of the names of what a worker leaves for the next (`session::doors`), so that nobody else takes it while
//! the supervisor lives.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::process_table::see;

/// The variable that tells a worker who supervises it.
pub const IDENTITY_VARIABLE: &str = "RINGFENCE_SUPERVISOR_ID";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    pid: i32,
    /// See `proc_pid_stat(5)`, `starttime`.
    started: u64,
    /// Among those of one process.
    number: u32,
}

impl Identity {
    /// An identity that differs from every other one.
    pub fn unique() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let pid = rustix::process::getpid().as_raw_nonzero().get();
        let started = see(pid).map_or(0, |seen| seen.started);
        Self { pid, started, number: NEXT.fetch_add(1, Ordering::Relaxed) }
    }

    /// Of the supervisor of this process, if it has one.
    pub fn of_own_supervisor() -> Option<Self> {
        std::env::var(IDENTITY_VARIABLE).ok()?.parse().ok()
    }

    /// Whether its process lives.
    pub fn is_alive(self) -> bool {
        see(self.pid).is_some_and(|seen| seen.is_alive && seen.started == self.started)
    }
}

/// Fit for a file name.
impl fmt::Display for Identity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{}.{}", self.pid, self.started, self.number)
    }
}

impl FromStr for Identity {
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
    fn it_is_known_by_its_text_and_lives_with_its_process() {
        let (one, other) = (Identity::unique(), Identity::unique());
        assert_ne!(one, other);
        assert_eq!(one.to_string().parse(), Ok(one));
        assert!(one.is_alive() && other.is_alive());
        let before = Identity { started: one.started.wrapping_sub(1), ..one };
        assert!(!before.is_alive(), "another had the number before");
        for broken in ["", "1", "1.2", "1.2.3.4", "1.2.x", "1..3", "../1.2.3"] {
            assert_eq!(broken.parse::<Identity>(), Err(()), "{broken}");
        }
    }
}
