//! What the proxy decided, for logs and the audit.
//!
//! Recording never waits: when the reader is behind, decisions are dropped and counted.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::mpsc;

use super::host::Host;
use super::rule::Rule;

/// One request, or one open tunnel, allowed or refused.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Decision {
    pub allowed: bool,
    /// Absent, like host and port, when the request could not be read.
    pub method: Option<String>,
    pub host: Option<Host>,
    pub port: Option<u16>,
    /// Where the connection went.
    pub address: Option<IpAddr>,
    /// The rule that admitted the host and port.
    pub rule: Option<Rule>,
    /// `allowed`, or the code of the refusal.
    pub reason: &'static str,
}

/// The proxy's end of a bounded channel of decisions.
#[derive(Debug, Clone)]
pub struct DecisionLog {
    sender: mpsc::Sender<Decision>,
    dropped: Arc<AtomicU64>,
}

impl DecisionLog {
    /// Makes a log that holds at most `capacity` unread decisions (at least one).
    pub fn bounded(capacity: usize) -> (Self, mpsc::Receiver<Decision>) {
        let (sender, receiver) = mpsc::channel(capacity.max(1));
        let dropped = Arc::default();
        (Self { sender, dropped }, receiver)
    }

    /// How many decisions found the channel full or closed.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    pub(super) fn record(&self, decision: Decision) {
        if self.sender.try_send(decision).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_log_drops_and_counts() {
        let (log, mut reader) = DecisionLog::bounded(1);
        log.record(Decision::default());
        log.record(Decision::default());
        assert_eq!(log.dropped(), 1);
        assert!(reader.try_recv().is_ok());
        assert!(reader.try_recv().is_err());
    }
}
