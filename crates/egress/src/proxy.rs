//! The server: accepts a sandbox's connections and owns all work done for them.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::connection::{serve, turn_away};
use super::decision::DecisionLog;
use super::policy::Policy;
use super::resolver::Resolver;

/// Bytes held for each direction of a connection.
pub(super) const BUFFER: usize = 16 * 1024;
/// Connections beyond the limit that are told so at once; those beyond these are just closed.
const MAX_TURNED_AWAY: usize = 32;
/// Failed accepts in a row before the listener counts as lost.
const MAX_FAILURES: u32 = 50;
const FAILURE_PAUSE: Duration = Duration::from_millis(100);

/// What one sandbox may take, in time and connections.
#[derive(Debug, Clone)]
pub struct Limits {
    pub connections: usize,
    /// For a request's head to arrive.
    pub head: Duration,
    pub resolve: Duration,
    /// For each address that is tried.
    pub connect: Duration,
    /// For a TLS greeting to arrive.
    pub hello: Duration,
    /// In which no byte moves either way.
    pub idle: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 128,
            head: Duration::from_secs(15),
            resolve: Duration::from_secs(10),
            connect: Duration::from_secs(10),
            hello: Duration::from_secs(10),
            idle: Duration::from_secs(300),
        }
    }
}

/// The proxy of one sandbox.
#[derive(Debug)]
pub struct Proxy {
    pub(super) policy: Policy,
    pub(super) limits: Limits,
    pub(super) resolver: Resolver,
    pub(super) log: DecisionLog,
}

impl Proxy {
    pub fn new(policy: Policy, log: DecisionLog) -> Self {
        Self { policy, limits: Limits::default(), resolver: Resolver::system(), log }
    }

    #[must_use]
    pub fn with_limits(self, limits: Limits) -> Self {
        Self { limits, ..self }
    }

    #[cfg(test)]
    pub(super) fn with_resolver(self, resolver: Resolver) -> Self {
        Self { resolver, ..self }
    }

    /// Serves a listening socket until `shutdown` ends or the socket is lost.
    ///
    /// When this returns, or is dropped, every connection is closed.
    pub async fn serve(self, listener: std::net::TcpListener, shutdown: impl Future<Output = ()>) -> io::Result<()> {
        listener.set_nonblocking(true)?;
        let listener = TcpListener::from_std(listener)?;
        let proxy = Arc::new(self);
        let mut served = JoinSet::new();
        let mut turned_away = JoinSet::new();
        let mut shutdown = pin!(shutdown);
        let mut failures = 0;
        let result = loop {
            let accepted = tokio::select! {
                biased;
                () = &mut shutdown => break Ok(()),
                Some(_) = served.join_next() => continue,
                Some(_) = turned_away.join_next() => continue,
                accepted = listener.accept() => accepted,
            };
            let stream = match accepted {
                Ok((stream, _)) => stream,
                Err(error) if failures == MAX_FAILURES => break Err(error),
                // out of descriptors, or a guest that went away while it waited
                Err(_) => {
                    failures += 1;
                    sleep(FAILURE_PAUSE).await;
                    continue;
                }
            };
            failures = 0;
            if stream.set_nodelay(true).is_err() {
                continue;
            }
            let (from_client, to_client) = stream.into_split();
            let proxy = Arc::clone(&proxy);
            if served.len() < proxy.limits.connections {
                served.spawn(async move { serve(&proxy, from_client, to_client).await });
            } else if turned_away.len() < MAX_TURNED_AWAY {
                turned_away.spawn(async move { turn_away(&proxy, from_client, to_client).await });
            }
        };
        served.shutdown().await;
        turned_away.shutdown().await;
        result
    }
}
