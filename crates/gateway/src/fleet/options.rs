//! The numbers by which servers are kept alive.

use std::time::Duration;

use ringfence_entries::{ServerEntry, Transport};

use super::state_machine::ATTEMPTS;

#[derive(Debug, Clone)]
pub(crate) struct FleetOptions {
    pub(crate) most_servers: usize,
    pub(crate) starts_at_once: usize,
    /// A start that takes longer no longer counts among those that start at once, but among the slow ones.
    pub(crate) slow_after: Duration,
    pub(crate) slow_starts_at_once: usize,
    /// Before the second attempt, the third and so on.
    pub(crate) retry_after: [Duration; ATTEMPTS as usize - 1],
    /// Connected for so long, a server has its whole budget of attempts again.
    pub(crate) proven_after: Duration,
    /// How long after the last attempt somebody who asks for a server that was given up brings about another.
    pub(crate) cool_down: Duration,
    /// How long a server that is reached over the network may take to connect.
    pub(crate) remote_startup_timeout: Duration,
    /// Between two looks at a server; also how long an answer to a probe may take.
    pub(crate) health_period: Duration,
    /// A link has 5 s for a clean end and then kills; this is when it is no longer waited for.
    pub(crate) stop_within: Duration,
}

impl Default for FleetOptions {
    fn default() -> Self {
        Self {
            most_servers: 256,
            starts_at_once: 4,
            slow_after: Duration::from_secs(5),
            slow_starts_at_once: 32,
            retry_after: [2, 4, 8].map(Duration::from_secs),
            proven_after: Duration::from_secs(60),
            cool_down: Duration::from_secs(30),
            remote_startup_timeout: Duration::from_secs(30),
            health_period: Duration::from_secs(5),
            stop_within: Duration::from_secs(8),
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
    pub(super) fn retry_after(&self, attempt: u8) -> Duration {
        let last = self.retry_after.len() - 1;
        self.retry_after[usize::from(attempt.saturating_sub(1)).min(last)]
    }
}
