//! The sessions table: the sessions that a next server takes over.

use ringfence_core::SessionId;
use rusqlite::params;

use crate::error::StoreError;
use crate::store::Store;

/// A stored session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionRecord {
    pub id: SessionId,
    pub principal: String,
    pub template: String,
    pub flavor: String,
    /// Seconds since the epoch.
    pub created: u64,
    /// Its launcher and its init, by which a next server reaches it.
    pub address: String,
}

impl Store {
    pub async fn upsert_session(&self, session: SessionRecord) -> Result<(), StoreError> {
        self.write(move |transaction| {
            let SessionRecord { id, principal, template, flavor, created, address } = &session;
            transaction
                .prepare_cached(
                    "INSERT OR REPLACE INTO sessions
                     (id, principal, template, flavor, created, address) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
                )?
                .execute(params![id.as_str(), principal, template, flavor, created, address])?;
            Ok(())
        })
        .await
    }

    pub async fn remove_session(&self, id: &SessionId) -> Result<(), StoreError> {
        let id = id.clone();
        self.write(move |transaction| {
            transaction.prepare_cached("DELETE FROM sessions WHERE id = ?1")?.execute([id.as_str()])?;
            Ok(())
        })
        .await
    }

    /// Returns the sessions of all servers, the oldest first.
    pub async fn sessions(&self) -> Result<Vec<SessionRecord>, StoreError> {
        self.query(|connection| {
            let mut statement = connection.prepare_cached(
                "SELECT id, principal, template, flavor, created, address FROM sessions ORDER BY created, id",
            )?;
            let rows = statement.query_map([], |row| {
                Ok(SessionRecord {
                    id: SessionId::from_caller(row.get::<_, String>(0)?),
                    principal: row.get(1)?,
                    template: row.get(2)?,
                    flavor: row.get(3)?,
                    created: row.get(4)?,
                    address: row.get(5)?,
                })
            })?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
        .await
    }
}
