//! The numbers by which servers are kept alive.

use std::time::Duration;

use ringfence_entries::{ServerEntry, Transport};

use super::state_machine::MAX_ATTEMPTS;

#[derive(Debug, Clone)]
pub(crate) struct FleetOptions {
    pub(crate) max_servers: usize,
    pub(crate) max_quick_starts: usize,
    /// A start that takes longer no longer counts among those that start at once, but among the slow ones.
    pub(crate) slow_after: Duration,
    pub(crate) max_slow_starts: usize,
    /// Before the second attempt, the third and so on.
    pub(crate) retry_delays: [Duration; MAX_ATTEMPTS as usize - 1],
    /// Connected for so long, a server has its whole budget of attempts again.
    pub(crate) stable_after: Duration,
    /// How long after the last attempt somebody who asks for a server that was given up brings about another.
    pub(crate) cool_down: Duration,
    /// How long a server that is reached over the network may take to connect.
    pub(crate) remote_startup_timeout: Duration,
    /// Between two looks at a server; also how long an answer to a probe may take.
    pub(crate) probe_period: Duration,
    /// A link has 5 s for a clean end and then kills; this is when it is no longer waited for.
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
            stable_after: Duration::from_secs(60),
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

    /// How long to wait after the attempt of this number, the first being 1.
    pub(super) fn retry_delay(&self, attempt: u8) -> Duration {
        let last = self.retry_delays.len() - 1;
        self.retry_delays[usize::from(attempt.saturating_sub(1)).min(last)]
    }
}
