//! The state that all connections of one sandbox share.

use std::time::Duration;

use crate::decision::DecisionLog;
use crate::name_lookup::NameLookup;
use crate::rules::Policy;

/// The policy, limits and log of one sandbox.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) policy: Policy,
    pub(crate) limits: Limits,
    pub(crate) lookup: NameLookup,
    pub(crate) log: DecisionLog,
}

/// Limits on the connections of one sandbox, and their timeouts.
#[derive(Debug, Clone)]
pub(crate) struct Limits {
    pub(crate) max_connections: usize,
    /// Timeout for a request head.
    pub(crate) head_timeout: Duration,
    /// Timeout for resolving a name.
    pub(crate) resolve_timeout: Duration,
    /// Timeout for connecting to one address.
    pub(crate) connect_timeout: Duration,
    /// Timeout for a TLS `ClientHello`.
    pub(crate) hello_timeout: Duration,
    /// Maximum time without traffic in either direction.
    pub(crate) idle_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_connections: 128,
            head_timeout: Duration::from_secs(15),
            resolve_timeout: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(10),
            hello_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(300),
        }
    }
}
