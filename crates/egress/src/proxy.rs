//! The explicit proxy: accepts the connections of a sandbox and owns all tasks that serve them.

mod connection;
mod forward;
mod request;
#[cfg(test)]
mod tests;
mod tunnel;

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::context::{Context, Limits};
use crate::decision::DecisionLog;
use crate::name_lookup::NameLookup;
use crate::rules::Policy;
use connection::{reject_connection, serve_connection};
#[cfg(fuzzing)]
pub(crate) use forward::ResponseHead;
#[cfg(fuzzing)]
pub(crate) use request::{ProxyRequest, RequestKind};

/// Maximum number of connections over the limit that receive a response; further ones are closed without one.
const MAX_REJECTIONS: usize = 32;
/// Number of consecutive failures of `accept` after which the listener counts as lost.
const MAX_ACCEPT_FAILURES: u32 = 50;
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// The proxy of one sandbox.
#[derive(Debug)]
pub struct Proxy {
    context: Context,
}

impl Proxy {
    pub fn new(policy: Policy, log: DecisionLog) -> Self {
        Self { context: Context { policy, limits: Limits::default(), lookup: NameLookup::system(), log } }
    }

    /// Serves a listening socket until `shutdown` completes or the socket is lost.
    ///
    /// When this future completes or is dropped, all connections are closed.
    pub async fn serve(self, listener: std::net::TcpListener, shutdown: impl Future<Output = ()>) -> io::Result<()> {
        listener.set_nonblocking(true)?;
        let listener = TcpListener::from_std(listener)?;
        let context = Arc::new(self.context);
        let mut served = JoinSet::new();
        let mut rejected = JoinSet::new();
        let mut shutdown = pin!(shutdown);
        let mut failures = 0;
        let result = loop {
            let accepted = tokio::select! {
                biased;
                () = &mut shutdown => break Ok(()),
                Some(_) = served.join_next() => continue,
                Some(_) = rejected.join_next() => continue,
                accepted = listener.accept() => accepted,
            };
            let stream = match accepted {
                Ok((stream, _)) => stream,
                Err(error) if failures == MAX_ACCEPT_FAILURES => break Err(error),
                // Out of descriptors, or the guest closed the connection before it was accepted.
                Err(_) => {
                    failures += 1;
                    sleep(ACCEPT_RETRY_DELAY).await;
                    continue;
                }
            };
            failures = 0;
            if stream.set_nodelay(true).is_err() {
                continue;
            }
            let (from_client, to_client) = stream.into_split();
            let context = Arc::clone(&context);
            if served.len() < context.limits.max_connections {
                served.spawn(async move { serve_connection(&context, from_client, to_client).await });
            } else if rejected.len() < MAX_REJECTIONS {
                rejected.spawn(async move { reject_connection(&context, from_client, to_client).await });
            }
        };
        served.shutdown().await;
        rejected.shutdown().await;
        result
    }
}
