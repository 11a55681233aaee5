//! Settings of the HTTP server.

use std::net::IpAddr;
use std::time::Duration;

/// Settings of the HTTP server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerSettings {
    pub host: IpAddr,
    pub port: u16,
    pub enable_cors: bool,
    /// Whether every user of this host may connect if there is no token.
    pub allow_local_users: bool,
    pub allowed_hosts: Vec<String>,
    /// The profile of the default endpoint and of stdio, which exists; `None` offers everything.
    pub profile: Option<String>,
    pub max_concurrent_requests: usize,
    pub max_connections: usize,
    pub timeouts: Timeouts,
}

/// Timeouts around a call. Each is longer than the one before, and `request` is longer than any call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// From the arrival of a call to its response.
    pub request: Duration,
    /// For running requests, after the server was asked to stop.
    pub drain: Duration,
    /// The time after which clients give up.
    pub client: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self { request: seconds(150), drain: seconds(180), client: seconds(300) }
    }
}
