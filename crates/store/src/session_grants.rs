//! The servers that the code of each session may call.
//!
//! Rows exist only for existing sessions, and are deleted with them. They survive the death of the process; a power cut
//! ends the sessions, too.

use ringfence_core::SessionId;
use rusqlite::{Connection, TransactionBehavior};

use crate::error::StoreError;
use crate::store::Store;

impl Store {
    /// Lets a session call these servers, by uuid, in addition to those granted earlier. Returns false if there is no
    /// such session.
    pub async fn grant(&self, session: &SessionId, servers: &[String]) -> Result<bool, StoreError> {
        let (session, servers) = (session.clone(), servers.to_vec());
        self.query(move |connection| Ok(grant(connection, &session, &servers)?)).await
    }

    /// Returns the uuids of the servers that a session may call, in the order in which they were granted.
    pub async fn granted(&self, session: &SessionId) -> Result<Vec<String>, StoreError> {
        let session = session.clone();
        self.query(move |connection| {
            let query = "SELECT server FROM session_servers WHERE session = ?1 ORDER BY rowid";
            let mut statement = connection.prepare_cached(query)?;
            let rows = statement.query_map([session.as_str()], |row| row.get(0))?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
        .await
    }
}

/// Checks the session and adds the grants in one transaction, so that none outlives the session.
fn grant(connection: &mut Connection, session: &SessionId, servers: &[String]) -> rusqlite::Result<bool> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let exists = transaction
        .prepare_cached("SELECT EXISTS (SELECT 1 FROM sessions WHERE id = ?1)")?
        .query_row([session.as_str()], |row| row.get(0))?;
    if exists {
        let statement = "INSERT OR IGNORE INTO session_servers (session, server) VALUES (?1, ?2)";
        let mut statement = transaction.prepare_cached(statement)?;
        for server in servers {
            statement.execute([session.as_str(), server])?;
        }
    }
    transaction.commit()?;
    Ok(exists)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SessionRecord;

    async fn open(sessions: &[(&str, u64)]) -> (tempfile::TempDir, Store) {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("state")).unwrap();
        for (name, created) in sessions {
            store.upsert_session(record(name, *created)).await.unwrap();
        }
        (directory, store)
    }

    fn record(name: &str, created: u64) -> SessionRecord {
        SessionRecord {
            id: SessionId::from_caller(name),
            principal: "ci".into(),
            template: "python".into(),
            flavor: "code".into(),
            created,
            address: "launcher.sock#7".into(),
        }
    }

    fn id(name: &str) -> SessionId {
        SessionId::from_caller(name)
    }

    #[tokio::test]
    async fn grants_accumulate_per_session() {
        let (directory, store) = open(&[("one", 1), ("two", 2)]).await;
        assert!(store.grant(&id("one"), &["u-2".into(), "u-1".into()]).await.unwrap());
        assert!(store.grant(&id("one"), &["u-1".into(), "u-3".into()]).await.unwrap());
        assert!(store.grant(&id("two"), &[]).await.unwrap());
        store.close().await;
        let store = Store::open(&directory.path().join("state")).unwrap();
        assert_eq!(store.granted(&id("one")).await.unwrap(), ["u-2", "u-1", "u-3"]);
        assert_eq!(store.granted(&id("two")).await.unwrap(), Vec::<String>::new());
    }

    #[tokio::test]
    async fn grants_exist_only_while_their_session_exists() {
        let (_directory, store) = open(&[("one", 1), ("two", 2)]).await;
        for session in ["one", "two"] {
            store.grant(&id(session), &["u-1".into()]).await.unwrap();
        }
        // The server updates the address of a running session.
        store.upsert_session(SessionRecord { address: "elsewhere#8".into(), ..record("two", 2) }).await.unwrap();
        store.remove_session(&id("one")).await.unwrap();
        assert_eq!(store.granted(&id("one")).await.unwrap(), Vec::<String>::new());
        assert_eq!(
            store.granted(&id("two")).await.unwrap(),
            ["u-1"],
            "an update of the session does not delete its grants"
        );

        // A new session with the same id starts without grants.
        assert!(!store.grant(&id("one"), &["u-1".into()]).await.unwrap());
        store.upsert_session(record("one", 3)).await.unwrap();
        assert_eq!(store.granted(&id("one")).await.unwrap(), Vec::<String>::new());
    }
}
