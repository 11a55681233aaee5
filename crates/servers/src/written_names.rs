//! Reports protected names that a hosted server creates in a read-write project: to the audit, to the log, and among
//! the server's last lines.

use std::sync::Arc;
use std::time::Duration;

use super::tail::Tail;
use crate::server_sandbox::InmateHandle;
use ringfence_backend::protected_names;
use ringfence_backend::protected_names::ProtectedNames;
use ringfence_entries::ServerEntry;
use ringfence_store::Audit;

/// The interval between checks.
const INTERVAL: Duration = Duration::from_secs(5);

pub(crate) struct Report {
    pub(crate) names: ProtectedNames,
    pub(crate) audit: Audit,
    pub(crate) tail: Arc<Tail>,
}

impl Report {
    /// Checks at intervals, and once more when the process has ended.
    pub(crate) async fn follow(self, entry: ServerEntry, process: InmateHandle) {
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
