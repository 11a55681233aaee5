//! Reports protected names that a hosted server creates in a read-write project: to the audit log, to the log, and in
//! the server's standard error tail.

use std::sync::Arc;
use std::time::Duration;

use crate::server_sandbox::{ProcessHandle, StderrTail};
use ringfence_backend::protected_names;
use ringfence_backend::protected_names::ProtectedNames;
use ringfence_entries::ServerEntry;
use ringfence_store::Audit;

/// The interval between checks.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

pub(super) struct ProtectedNamesReport {
    pub(super) names: ProtectedNames,
    pub(super) audit: Audit,
    pub(super) stderr_tail: Arc<StderrTail>,
}

impl ProtectedNamesReport {
    /// Checks at intervals while the process runs, and once more after it has exited.
    pub(super) async fn run(self, entry: ServerEntry, process: ProcessHandle) {
        let mut exit = std::pin::pin!(process.wait_for_exit());
        while tokio::time::timeout(CHECK_INTERVAL, &mut exit).await.is_err() {
            self.report_changes(&entry).await;
        }
        self.report_changes(&entry).await;
    }

    async fn report_changes(&self, entry: &ServerEntry) {
        for change in self.names.changes().await.unwrap_or_default() {
            let event = protected_names::event(&change);
            self.audit.record(event.with("server", entry.name.as_str()).with("uuid", entry.uuid.as_str()));
            tracing::warn!("server {}: {change}", entry.name);
            self.stderr_tail.add_line(&format!("ringfence: warning: {change}"));
        }
    }
}
