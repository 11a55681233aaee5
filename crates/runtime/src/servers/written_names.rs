//! Reports protected names that a hosted server creates in a read-write project: to the audit, to the log, and among
//! the server's last lines.

use std::sync::Arc;
use std::time::Duration;

use super::cell::InmateHandle;
use super::entry::ServerEntry;
use super::tail::Tail;
use crate::audit::Audit;
use crate::protected_names::{self, ProtectedNames};

/// The interval between checks.
const INTERVAL: Duration = Duration::from_secs(5);

pub(super) struct Report {
    pub(super) names: ProtectedNames,
    pub(super) audit: Audit,
    pub(super) tail: Arc<Tail>,
}

impl Report {
    /// Checks at intervals, and once more when the process has ended.
    pub(super) async fn follow(self, entry: ServerEntry, process: InmateHandle) {
        let mut ended = std::pin::pin!(process.ended());
        while tokio::time::timeout(INTERVAL, &mut ended).await.is_err() {
            self.look(&entry).await;
        }
        self.look(&entry).await;
    }

    async fn look(&self, entry: &ServerEntry) {
        for change in self.names.changes().await.unwrap_or_default() {
            let event = protected_names::event(&change);
            self.audit.record(event.with("server", entry.name.as_str()).with("uuid", entry.uuid.as_str()));
            tracing::warn!("server {}: {change}", entry.name);
            self.tail.note(&format!("ringfence: warning: {change}"));
        }
    }
}
