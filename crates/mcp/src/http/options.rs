//! Settings of the HTTP transport.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::fair_pool::Principals;
use crate::rpc;

#[derive(Debug, Clone)]
pub struct HttpOptions {
    /// Names besides the loopback ones that requests may carry as Host and Origin.
    pub allowed_hosts: Vec<String>,
    pub enable_cors: bool,
    /// Maximum number of concurrent requests; further ones get 503. Event streams that only listen do not count.
    pub max_requests: usize,
    /// Maximum number of concurrent connections; further ones get 503.
    pub max_connections: usize,
    pub max_body_bytes: usize,
    /// Maximum size of all responses that clients have not read yet: a slow client costs memory until it has read.
    pub max_response_bytes: usize,
    /// Whether several principals share the limits.
    pub principals: Principals,
    /// Cancelled when the server is to end: requests in progress may finish, and no others start.
    pub drain: CancellationToken,
    /// Maximum time for the requests in progress after `drain`.
    pub drain_timeout: Duration,
}

impl Default for HttpOptions {
    fn default() -> Self {
        Self {
            allowed_hosts: Vec::new(),
            enable_cors: false,
            max_requests: 512,
            max_connections: 1024,
            max_body_bytes: rpc::MAX_MESSAGE_BYTES,
            max_response_bytes: 512 << 20,
            principals: Principals::One,
            drain: CancellationToken::new(),
            drain_timeout: Duration::from_secs(180),
        }
    }
}
