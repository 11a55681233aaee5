//! Reads of the audit table.

use ringfence_core::SessionId;
use rusqlite::{Row, params};
use serde::Serialize;

use crate::error::StoreError;
use crate::store::Store;

/// A stored audit event.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AuditRecord {
    /// The position in the audit log. A later event has a higher number.
    pub number: u64,
    pub time_ms: u64,
    pub principal: Option<String>,
    pub session: Option<String>,
    pub kind: String,
    pub outcome: String,
    pub duration_ms: Option<u64>,
    pub detail: serde_json::Value,
}

/// The conditions for the events to read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditFilter {
    /// Earliest time, in milliseconds since the epoch.
    pub since_ms: u64,
    /// If set, only events of this principal are read.
    pub principal: Option<String>,
}

const COLUMNS: &str = "number, time_ms, principal, session, kind, outcome, duration_ms, detail";

fn record(row: &Row<'_>) -> rusqlite::Result<AuditRecord> {
    Ok(AuditRecord {
        number: row.get(0)?,
        time_ms: row.get(1)?,
        principal: row.get(2)?,
        session: row.get(3)?,
        kind: row.get(4)?,
        outcome: row.get(5)?,
        duration_ms: row.get(6)?,
        detail: serde_json::from_str(&row.get::<_, String>(7)?).unwrap_or_default(),
    })
}

impl Store {
    /// Returns the last events of one session, or of all events without `session`; the newest first.
    pub async fn recent_audit(&self, session: Option<&SessionId>, limit: u32) -> Result<Vec<AuditRecord>, StoreError> {
        let session = session.cloned();
        self.query(move |connection| {
            let condition = if session.is_some() { "WHERE session = ?1" } else { "WHERE ?1 IS NULL" };
            let mut statement = connection
                .prepare_cached(&format!("SELECT {COLUMNS} FROM audit {condition} ORDER BY number DESC LIMIT ?2"))?;
            let rows = statement.query_map(params![session.as_ref().map(SessionId::as_str), limit], record)?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
        .await
    }

    /// Returns events of all servers with a higher number than `after`, the oldest first.
    pub async fn audit_after(
        &self,
        after: u64,
        filter: &AuditFilter,
        limit: u32,
    ) -> Result<Vec<AuditRecord>, StoreError> {
        let principal = filter.principal.clone();
        let since_ms = i64::try_from(filter.since_ms).unwrap_or(i64::MAX);
        self.query(move |connection| {
            let mut statement = connection.prepare_cached(&format!(
                "SELECT {COLUMNS} FROM audit WHERE number > ?1 AND time_ms >= ?2 AND (?3 IS NULL OR principal = ?3)
                 ORDER BY number LIMIT ?4"
            ))?;
            let rows = statement.query_map(params![after, since_ms, principal, limit], record)?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
        .await
    }
}
