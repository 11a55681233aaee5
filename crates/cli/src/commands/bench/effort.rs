//! How much is measured.

use std::time::Duration;

/// How often, how many, how long.
pub(super) struct Effort {
    /// Turns of sessions and processes that are started.
    pub(super) turns: usize,
    /// Calls in a live session.
    pub(super) calls: usize,
    /// Sessions at once, and how often.
    pub(super) burst: usize,
    pub(super) bursts: usize,
    /// Live sessions.
    pub(super) sessions: usize,
    pub(super) flood_bytes: u64,
    pub(super) floods: usize,
    /// Between two turns, for the pool to be filled again; longer for an interpreter that starts slowly.
    pub(super) pause: Duration,
    pub(super) long_pause: Duration,
}

impl Effort {
    pub(super) fn new(quick: bool, sessions: Option<u32>) -> Self {
        let given = sessions.map(|sessions| sessions as usize);
        if quick {
            return Self {
                turns: 3,
                calls: 20,
                burst: 8,
                bursts: 1,
                sessions: given.unwrap_or(8),
                flood_bytes: 32 << 20,
                floods: 1,
                pause: Duration::from_millis(50),
                long_pause: Duration::from_millis(100),
            };
        }
        Self {
            turns: 100,
            calls: 2000,
            burst: 100,
            bursts: 5,
            sessions: given.unwrap_or(200),
            flood_bytes: 2 << 30,
            floods: 3,
            pause: Duration::from_millis(100),
            long_pause: Duration::from_millis(300),
        }
    }
}
