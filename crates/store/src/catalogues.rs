//! The catalogues table: the tools that each hosted server listed last, so that they can be searched while it does not
//! run.
//!
//! A cache: a row that is missing or unreadable is written again when the server is next connected.

use std::time::{SystemTime, UNIX_EPOCH};

use rusqlite::{OptionalExtension as _, TransactionBehavior, params};
use serde_json::Value;

use crate::error::StoreError;
use crate::store::Store;

/// Maximum size of the tools of one server as JSON.
const MAX_BYTES: usize = 16 << 20;

/// Maximum number of servers; those that changed longest ago are deleted first.
const MAX_SERVERS: usize = 512;

/// The tools of a server, as it listed them.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredCatalogue {
    /// The server's uuid.
    pub server: String,
    pub tools: Vec<Value>,
    /// The time of their last change, in seconds since the epoch.
    pub updated: u64,
}

impl Store {
    /// Stores the tools of a server. Returns false if they are too large; nothing is then stored for this server.
    ///
    /// Unchanged tools are not written again.
    pub async fn set_catalogue(&self, server: &str, tools: &[Value]) -> Result<bool, StoreError> {
        self.set_catalogue_within(server, tools, MAX_BYTES, MAX_SERVERS).await
    }

    async fn set_catalogue_within(
        &self,
        server: &str,
        tools: &[Value],
        max_bytes: usize,
        max_servers: usize,
    ) -> Result<bool, StoreError> {
        let text = serde_json::to_string(tools).unwrap_or_default();
        if text.is_empty() || text.len() > max_bytes {
            self.remove_catalogue(server).await?;
            return Ok(false);
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let server = server.to_owned();
        self.query(move |connection| {
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
                .execute(params![server, max_servers.saturating_sub(1)])?;
            transaction.commit()?;
            Ok(true)
        })
        .await
    }

    /// Returns the stored tools of these servers, in the given order. Unreadable rows are ignored.
    pub async fn catalogues(&self, servers: Vec<String>) -> Result<Vec<StoredCatalogue>, StoreError> {
        self.query(move |connection| {
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

    /// Deletes the tools of a server.
    pub async fn remove_catalogue(&self, server: &str) -> Result<(), StoreError> {
        let server = server.to_owned();
        self.query(move |connection| {
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
    use crate::OnConflict;
    use ringfence_entries::entry_from_json;

    fn store() -> (tempfile::TempDir, Store) {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("state")).unwrap();
        (directory, store)
    }

    async fn stored(store: &Store, servers: &[&str]) -> Vec<(String, Vec<Value>)> {
        let servers = servers.iter().map(|server| (*server).to_owned()).collect();
        let found = store.catalogues(servers).await.unwrap();
        found.into_iter().map(|found| (found.server, found.tools)).collect()
    }

    /// Changes the time of the last change.
    async fn backdate(store: &Store, server: &'static str, updated: u64) {
        let sql = "UPDATE catalogues SET updated = ?2 WHERE server = ?1";
        store.query(move |connection| Ok(connection.execute(sql, params![server, updated])?)).await.unwrap();
    }

    #[tokio::test]
    async fn tools_are_unchanged_after_a_restart() {
        let (directory, store) = store();
        let tools = vec![json!({"name": "b", "x": {"z": 1, "a": [null, "é"]}}), json!({"name": "a"})];
        assert!(store.set_catalogue("one", &tools).await.unwrap());
        assert!(store.set_catalogue("two", &[]).await.unwrap());
        store.close().await;
        let store = Store::open(&directory.path().join("state")).unwrap();
        let found = stored(&store, &["two", "none", "one"]).await;
        assert_eq!(found, [("two".into(), vec![]), ("one".into(), tools.clone())]);
        assert_eq!(found[1].1[0].to_string(), tools[0].to_string(), "with the same order of keys");
        store.remove_catalogue("one").await.unwrap();
        assert_eq!(stored(&store, &["one"]).await, []);
    }

    #[tokio::test]
    async fn unchanged_tools_are_not_written_again() {
        let (_directory, store) = store();
        let tools = [json!({"name": "a"})];
        store.set_catalogue("one", &tools).await.unwrap();
        backdate(&store, "one", 7).await;
        store.set_catalogue("one", &tools).await.unwrap();
        assert_eq!(store.catalogues(vec!["one".into()]).await.unwrap()[0].updated, 7);
        store.set_catalogue("one", &[json!({"name": "b"})]).await.unwrap();
        assert!(store.catalogues(vec!["one".into()]).await.unwrap()[0].updated > 7);
    }

    #[tokio::test]
    async fn size_and_number_of_catalogues_are_limited() {
        let (_directory, store) = store();
        let large = [json!({"name": "x".repeat(100)})];
        assert!(store.set_catalogue_within("one", &[json!({})], 64, 2).await.unwrap());
        assert!(!store.set_catalogue_within("one", &large, 64, 2).await.unwrap());
        assert_eq!(stored(&store, &["one"]).await, [], "the earlier tools are outdated");
        for (server, updated) in [("one", 30), ("two", 20), ("three", 10)] {
            store.set_catalogue_within(server, &[], 64, 2).await.unwrap();
            backdate(&store, server, updated).await;
        }
        let remaining: Vec<String> =
            stored(&store, &["one", "two", "three"]).await.into_iter().map(|(name, _)| name).collect();
        assert_eq!(remaining, ["one", "three"], "the one that was written, and the newest of the others");
    }

    #[tokio::test]
    async fn unreadable_row_is_ignored() {
        let (_directory, store) = store();
        store.set_catalogue("one", &[]).await.unwrap();
        store.set_catalogue("two", &[]).await.unwrap();
        let sql = "UPDATE catalogues SET tools = '{\"half' WHERE server = 'one'";
        store.query(|connection| Ok(connection.execute(sql, [])?)).await.unwrap();
        assert_eq!(stored(&store, &["one", "two"]).await, [("two".into(), vec![])]);
    }

    #[tokio::test]
    async fn catalogue_is_deleted_with_its_server() {
        let (_directory, store) = store();
        let entry = entry_from_json("a", &json!({"command": "x"})).unwrap().0;
        let entry = store.add_server(entry, None, OnConflict::Refuse).await.unwrap();
        store.set_catalogue(&entry.uuid, &[json!({"name": "t"})]).await.unwrap();
        store.remove_server("a").await.unwrap();
        assert_eq!(stored(&store, &[&entry.uuid]).await, []);
    }
}
