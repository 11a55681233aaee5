//! The rules that were added to the network of running sessions, so that the next server applies them too.
//!
//! Rows exist only for existing sessions, and are deleted with them.

use ringfence_core::SessionId;
use rusqlite::params;

use crate::error::StoreError;
use crate::store::Store;

impl Store {
    /// Adds rules to a session. Returns false if there is no such session.
    pub async fn add_session_rules(&self, session: &SessionId, rules: Vec<String>) -> Result<bool, StoreError> {
        let session = session.clone();
        self.query(move |connection| {
            let transaction = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
            let exists = transaction
                .prepare_cached("SELECT EXISTS (SELECT 1 FROM sessions WHERE id = ?1)")?
                .query_row([session.as_str()], |row| row.get(0))?;
            if exists {
                let statement = "INSERT OR IGNORE INTO session_rules (session, rule) VALUES (?1, ?2)";
                let mut statement = transaction.prepare_cached(statement)?;
                for rule in &rules {
                    statement.execute(params![session.as_str(), rule])?;
                }
            }
            transaction.commit()?;
            Ok(exists)
        })
        .await
    }

    /// Returns the rules that were added to a session, in the order in which they were added.
    pub async fn session_rules(&self, session: &SessionId) -> Result<Vec<String>, StoreError> {
        let session = session.clone();
        self.query(move |connection| {
            let query = "SELECT rule FROM session_rules WHERE session = ?1 ORDER BY rowid";
            let mut statement = connection.prepare_cached(query)?;
            let rows = statement.query_map([session.as_str()], |row| row.get(0))?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SessionRecord;

    fn record(name: &str) -> SessionRecord {
        SessionRecord {
            id: SessionId::from_caller(name),
            principal: "ci".into(),
            template: "python".into(),
            flavor: "small".into(),
            created: 1,
            address: "launcher.sock#7".into(),
        }
    }

    #[tokio::test]
    async fn rules_survive_a_restart_and_end_with_their_session() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state");
        let store = Store::open(&path).unwrap();
        let [one, two] = ["one", "two"].map(SessionId::from_caller);
        store.upsert_session(record("one")).await.unwrap();
        assert!(store.add_session_rules(&one, vec!["b.example".into(), "a.example:22".into()]).await.unwrap());
        assert!(store.add_session_rules(&one, vec!["b.example".into()]).await.unwrap(), "repeating it is harmless");
        assert!(!store.add_session_rules(&two, vec!["c.example".into()]).await.unwrap());
        // The sandbox of the session was replaced.
        store.upsert_session(SessionRecord { address: "elsewhere#8".into(), ..record("one") }).await.unwrap();
        store.close().await;
        let store = Store::open(&path).unwrap();
        assert_eq!(store.session_rules(&one).await.unwrap(), ["b.example", "a.example:22"]);
        store.remove_session(&one).await.unwrap();
        assert_eq!(store.session_rules(&one).await.unwrap(), Vec::<String>::new());
        store.close().await;
    }
}
