//! The times around a call: how long a request, an orderly end and a client may take.

use std::time::Duration;

use super::file::{Seconds, ServerConfig};

/// Each is longer than the one before, and the first longer than any call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// From the arrival of a call of a sandbox tool to its answer.
    pub request: Duration,
    /// For requests under way, once the server is told to end.
    pub drain: Duration,
    /// What clients wait.
    pub client: Duration,
}

impl Default for Times {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self { request: seconds(150), drain: seconds(180), client: seconds(300) }
    }
}

impl Times {
    pub(super) fn of(given: &ServerConfig) -> Self {
        let usual = Self::default();
        Self {
            request: given.request_timeout_s.map_or(usual.request, Seconds::duration),
            drain: given.drain_timeout_s.map_or(usual.drain, Seconds::duration),
            client: given.client_timeout_s.map_or(usual.client, Seconds::duration),
        }
    }
}
