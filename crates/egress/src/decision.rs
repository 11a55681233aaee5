//! Decisions about the egress of a sandbox, for logs and the audit.
//!
//! Recording never blocks: if the channel is full, the decision is dropped and counted.

mod description;

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::mpsc;

use crate::rules::{Host, Rule};

/// The decision about one lookup, connection or request, or about traffic in one open tunnel.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Decision {
    pub is_allowed: bool,
    /// `None` if the guest did not send a request, or one that could not be parsed.
    pub method: Option<String>,
    /// `None` if the guest named no valid host.
    pub host: Option<Host>,
    /// `None` if `host` is, and for lookups.
    pub port: Option<u16>,
    /// The address of the server that the guest is connected to.
    pub address: Option<IpAddr>,
    /// The rule that allows the host and port.
    pub rule: Option<Rule>,
    /// `allowed`, or the stable code of the refusal.
    pub reason: &'static str,
    pub source: Source,
    /// The name of the secret whose placeholder a request contains.
    pub secret: Option<String>,
    /// The package that the mirror requested from a registry: `pypi/NAME` or `npm/NAME`.
    pub package: Option<String>,
}

/// The part of the egress that decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Source {
    Resolver,
    Transparent,
    #[default]
    Proxy,
    /// The package mirror, which reports only what it requests from a registry.
    Mirror,
}

/// The sending half of a bounded channel of decisions.
#[derive(Debug, Clone)]
pub struct DecisionLog {
    sender: mpsc::Sender<Decision>,
    dropped: Arc<AtomicU64>,
}

impl DecisionLog {
    /// Creates a log with a channel for at most `capacity` unread decisions, at least one.
    pub fn bounded(capacity: usize) -> (Self, mpsc::Receiver<Decision>) {
        let (sender, receiver) = mpsc::channel(capacity.max(1));
        let dropped = Arc::default();
        (Self { sender, dropped }, receiver)
    }

    /// Returns the number of decisions that were dropped because there were too many, or because the channel was closed.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    pub(crate) fn record(&self, decision: Decision) {
        if self.sender.try_send(decision).is_err() {
            self.count_dropped();
        }
    }

    /// Counts a decision that is not recorded.
    pub(crate) fn count_dropped(&self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_log_drops_and_counts() {
        let (log, mut reader) = DecisionLog::bounded(1);
        log.record(Decision::default());
        log.record(Decision::default());
        assert_eq!(log.dropped(), 1);
        assert!(reader.try_recv().is_ok());
        assert!(reader.try_recv().is_err());
    }
}
