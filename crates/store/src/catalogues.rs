//! What servers offered last, so that it can be looked through while they do not run.
//!
//! Any server may have written a row, and it can be lost at any time: it is read again when the server is next connected.

use std::time::{SystemTime, UNIX_EPOCH};

use rusqlite::{OptionalExtension as _, TransactionBehavior, params};
use serde_json::Value;

use super::{Store, StoreError};

/// A longer one is not kept.
const MOST_BYTES: usize = 16 << 20;

/// Servers of which something is kept; those that changed longest ago give way.
const MOST_SERVERS: usize = 512;

/// The tools of a server, as it listed them.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredCatalogue {
    /// The server's uuid.
    pub server: String,
    pub tools: Vec<Value>,
    /// Since when they are these, in seconds since the epoch.
    pub updated: u64,
}

impl Store {
    /// Keeps the tools of a server; false if they are too many to be kept, and then nothing is.
    ///
    /// What is there already is not written again.
    pub async fn set_catalogue(&self, server: &str, tools: &[Value]) -> Result<bool, StoreError> {
        self.set_bounded(server, tools, MOST_BYTES, MOST_SERVERS).await
    }

    async fn set_bounded(
        &self,
        server: &str,
        tools: &[Value],
        most_bytes: usize,
        most_servers: usize,
    ) -> Result<bool, StoreError> {
        let text = serde_json::to_string(tools).unwrap_or_default();
        if text.is_empty() || text.len() > most_bytes {
            self.remove_catalogue(server).await?;
            return Ok(false);
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let server = server.to_owned();
        self.with(move |connection| {
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            transaction
                .prepare_cached(
                    "INSERT INTO catalogues (server, tools, updated) VALUES (?1, ?2, ?3)
                     ON CONFLICT (server) DO UPDATE SET tools = excluded.tools, updated = excluded.updated
                     WHERE tools IS NOT excluded.tools",
                )?
                .execute(params![server, text, now])?;
            transaction
                .prepare_cached(
                    "DELETE FROM catalogues WHERE server IN (
                         SELECT server FROM catalogues WHERE server <> ?1
                         ORDER BY updated DESC, server LIMIT -1 OFFSET ?2)",
                )?
                .execute(params![server, most_servers.saturating_sub(1)])?;
            transaction.commit()?;
            Ok(true)
        })
        .await
    }

    /// What is kept of these servers, in their order. One that makes no sense counts as not there.
    pub async fn catalogues(&self, servers: Vec<String>) -> Result<Vec<StoredCatalogue>, StoreError> {
        self.with(move |connection| {
            let mut statement = connection.prepare_cached("SELECT tools, updated FROM catalogues WHERE server = ?1")?;
            let mut found = Vec::new();
            for server in servers {
                let row = statement
                    .query_row([&server], |row| Ok((row.get::<_, String>(0)?, row.get::<_, u64>(1)?)))
                    .optional()?;
                let Some((text, updated)) = row else { continue };
                if let Ok(tools) = serde_json::from_str(&text) {
                    found.push(StoredCatalogue { server, tools, updated });
                }
            }
            Ok(found)
        })
        .await
    }

    /// Forgets the tools of a server.
    pub async fn remove_catalogue(&self, server: &str) -> Result<(), StoreError> {
        let server = server.to_owned();
        self.with(move |connection| {
            connection.execute("DELETE FROM catalogues WHERE server = ?1", [server])?;
            Ok(())
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::Taken;
    use ringfence_entries::entry_from_json;

    fn store() -> (tempfile::TempDir, Store) {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("state")).unwrap();
        (directory, store)
    }

    async fn kept(store: &Store, servers: &[&str]) -> Vec<(String, Vec<Value>)> {
        let servers = servers.iter().map(|server| (*server).to_owned()).collect();
        let found = store.catalogues(servers).await.unwrap();
        found.into_iter().map(|found| (found.server, found.tools)).collect()
    }

    /// As if it had been written at this time.
    async fn date(store: &Store, server: &'static str, updated: u64) {
        let sql = "UPDATE catalogues SET updated = ?2 WHERE server = ?1";
        store.with(move |connection| Ok(connection.execute(sql, params![server, updated])?)).await.unwrap();
    }

    #[tokio::test]
    async fn tools_stay_as_they_are_after_a_restart() {
        let (directory, store) = store();
        let tools = vec![json!({"name": "b", "x": {"z": 1, "a": [null, "é"]}}), json!({"name": "a"})];
        assert!(store.set_catalogue("one", &tools).await.unwrap());
        assert!(store.set_catalogue("two", &[]).await.unwrap());
        store.close().await;
        let store = Store::open(&directory.path().join("state")).unwrap();
        let found = kept(&store, &["two", "none", "one"]).await;
        assert_eq!(found, [("two".into(), vec![]), ("one".into(), tools.clone())]);
        assert_eq!(found[1].1[0].to_string(), tools[0].to_string(), "with the order of its keys");
        store.remove_catalogue("one").await.unwrap();
        assert_eq!(kept(&store, &["one"]).await, []);
    }

    #[tokio::test]
    async fn what_is_there_already_is_not_written_again() {
        let (_directory, store) = store();
        let tools = [json!({"name": "a"})];
        store.set_catalogue("one", &tools).await.unwrap();
        date(&store, "one", 7).await;
        store.set_catalogue("one", &tools).await.unwrap();
        assert_eq!(store.catalogues(vec!["one".into()]).await.unwrap()[0].updated, 7);
        store.set_catalogue("one", &[json!({"name": "b"})]).await.unwrap();
        assert!(store.catalogues(vec!["one".into()]).await.unwrap()[0].updated > 7);
    }

    #[tokio::test]
    async fn what_is_kept_is_bounded() {
        let (_directory, store) = store();
        let large = [json!({"name": "x".repeat(100)})];
        assert!(store.set_bounded("one", &[json!({})], 64, 2).await.unwrap());
        assert!(!store.set_bounded("one", &large, 64, 2).await.unwrap());
        assert_eq!(kept(&store, &["one"]).await, [], "what was there before is not what it offers");
        for (server, updated) in [("one", 30), ("two", 20), ("three", 10)] {
            store.set_bounded(server, &[], 64, 2).await.unwrap();
            date(&store, server, updated).await;
        }
        let left: Vec<String> =
            kept(&store, &["one", "two", "three"]).await.into_iter().map(|(name, _)| name).collect();
        assert_eq!(left, ["one", "three"], "the one that is written stays, and the newest of the others");
    }

    #[tokio::test]
    async fn a_row_that_makes_no_sense_is_as_none() {
        let (_directory, store) = store();
        store.set_catalogue("one", &[]).await.unwrap();
        store.set_catalogue("two", &[]).await.unwrap();
        let sql = "UPDATE catalogues SET tools = '{\"half' WHERE server = 'one'";
        store.with(|connection| Ok(connection.execute(sql, [])?)).await.unwrap();
        assert_eq!(kept(&store, &["one", "two"]).await, [("two".into(), vec![])]);
    }

    #[tokio::test]
    async fn a_server_takes_its_catalogue_with_it() {
        let (_directory, store) = store();
        let entry = entry_from_json("a", &json!({"command": "x"})).unwrap().0;
        let entry = store.add_server(entry, None, Taken::Refuse).await.unwrap();
        store.set_catalogue(&entry.uuid, &[json!({"name": "t"})]).await.unwrap();
        store.remove_server("a").await.unwrap();
        assert_eq!(kept(&store, &[&entry.uuid]).await, []);
    }
}
