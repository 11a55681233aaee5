//! Limits and times of the fleet.

use std::time::Duration;

use ringfence_entries::{ServerEntry, Transport};

use super::state_machine::MAX_ATTEMPTS;

#[derive(Debug, Clone)]
pub(crate) struct FleetOptions {
    pub(crate) max_servers: usize,
    pub(crate) max_quick_starts: usize,
    /// Duration after which a start counts as slow, and no longer as quick.
    pub(crate) slow_after: Duration,
    pub(crate) max_slow_starts: usize,
    /// The delays before the second attempt, the third and so on.
    pub(crate) retry_delays: [Duration; MAX_ATTEMPTS as usize - 1],
    /// Duration of a connection after which it is stable, and the attempts are counted from zero.
    pub(crate) stable_after: Duration,
    /// Time after the last attempt until a caller that needs the server causes another one.
    pub(crate) cool_down: Duration,
    /// Maximum time to connect a remote server.
    pub(crate) remote_startup_timeout: Duration,
    /// Time between two health checks, and maximum time for the response to a probe.
    pub(crate) probe_period: Duration,
    /// Maximum time to wait for a server to stop. A link kills its server after 5 s.
    pub(crate) stop_timeout: Duration,
}

impl Default for FleetOptions {
    fn default() -> Self {
        Self {
            max_servers: 256,
            max_quick_starts: 4,
            slow_after: Duration::from_secs(5),
            max_slow_starts: 32,
            retry_delays: [2, 4, 8].map(Duration::from_secs),
            stable_after: Duration::from_mins(1),
            cool_down: Duration::from_secs(30),
            remote_startup_timeout: Duration::from_secs(30),
            probe_period: Duration::from_secs(5),
            stop_timeout: Duration::from_secs(8),
        }
    }
}

impl FleetOptions {
    pub(super) fn startup_timeout(&self, entry: &ServerEntry) -> Duration {
        match &entry.transport {
            Transport::Stdio(settings) => settings.sandbox_settings.startup_timeout,
            Transport::Http(_) | Transport::Sse(_) | Transport::Websocket(_) | Transport::Remote(_) => {
                self.remote_startup_timeout
            }
        }
    }

    /// The delay after an attempt, counted from 1.
    pub(super) fn retry_delay(&self, attempt: u8) -> Duration {
        let last = self.retry_delays.len() - 1;
        self.retry_delays[usize::from(attempt.saturating_sub(1)).min(last)]
    }
}
