//! Numbers of samples and sessions of a run.

use std::time::Duration;

/// Numbers of samples, sessions and bytes.
pub(crate) struct Workload {
    /// Samples of everything that starts a session or process.
    pub(crate) starts: usize,
    /// Samples of calls in a live session or through a gateway.
    pub(crate) calls: usize,
    /// Sessions that are created at the same time in one burst.
    pub(crate) burst_sessions: usize,
    pub(crate) bursts: usize,
    /// Live sessions in `density`.
    pub(crate) live_sessions: usize,
    pub(crate) flood_bytes: u64,
    pub(crate) floods: usize,
    /// Bytes of one large response in `egress`.
    pub(crate) transfer_bytes: u32,
    pub(crate) transfers: usize,
    /// Installations of each package in `packages`.
    pub(crate) installations: usize,
    /// Whether the packages of the template `data` are installed.
    pub(crate) installs_data: bool,
    /// Time between two samples in which the pool is refilled.
    pub(crate) pause: Duration,
    /// The same for an interpreter that starts slowly.
    pub(crate) long_pause: Duration,
}

impl Workload {
    pub(crate) fn new(is_quick: bool, live_sessions: Option<u32>) -> Self {
        let live_sessions = live_sessions.map(|sessions| sessions as usize);
        if is_quick {
            return Self {
                starts: 3,
                calls: 20,
                burst_sessions: 8,
                bursts: 1,
                live_sessions: live_sessions.unwrap_or(8),
                flood_bytes: 32 << 20,
                floods: 1,
                transfer_bytes: 8 << 20,
                transfers: 2,
                installations: 2,
                installs_data: false,
                pause: Duration::from_millis(50),
                long_pause: Duration::from_millis(100),
            };
        }
        Self {
            starts: 100,
            calls: 2000,
            burst_sessions: 100,
            bursts: 5,
            live_sessions: live_sessions.unwrap_or(200),
            flood_bytes: 2 << 30,
            floods: 3,
            transfer_bytes: 256 << 20,
            transfers: 20,
            installations: 20,
            installs_data: true,
            pause: Duration::from_millis(100),
            long_pause: Duration::from_millis(300),
        }
    }
}
