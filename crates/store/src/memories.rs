//! The memories table: JSON values that principals store for later sessions, by key.
//!
//! Principals cannot see the memories of each other. A value is stored as the text that was given, so numbers of any
//! size remain exact.

use rusqlite::{OptionalExtension as _, Row, Transaction, params};
use serde::Serialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value};

use crate::connection::durable_transaction;
use crate::error::{Collection, Rejected, StoreError};
use crate::store::Store;

const MAX_KEY_CHARS: usize = 256;
const MAX_VALUE_BYTES: u64 = 1 << 20;
const MAX_METADATA_BYTES: u64 = 16 << 10;
/// Maximum number of memories of one principal.
const MAX_KEYS: u64 = 1000;
/// Maximum size of all memories of one principal.
const MAX_TOTAL_BYTES: u64 = 16 << 20;

/// A stored value and its metadata.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Memory {
    /// JSON.
    pub value: String,
    pub metadata: Map<String, Value>,
}

/// A memory without its value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MemoryInfo {
    pub key: String,
    /// Size of the value as JSON, in bytes.
    pub size: u64,
    /// Seconds since the epoch.
    pub created: u64,
    pub updated: u64,
    pub metadata: Map<String, Value>,
}

/// The times at which a memory was first and last saved, in seconds since the epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct MemorySaved {
    pub created: u64,
    pub updated: u64,
}

impl Store {
    /// Stores a value, given as JSON, and replaces the previous one. Without metadata, the previous metadata remains.
    pub async fn save_memory(
        &self,
        principal: &str,
        key: &str,
        value: String,
        metadata: Option<Map<String, Value>>,
    ) -> Result<MemorySaved, StoreError> {
        check_key(key)?;
        check_size("the value of a memory", value.len(), MAX_VALUE_BYTES)?;
        if serde_json::from_str::<IgnoredAny>(&value).is_err() {
            return Err(Rejected::NotJson.into());
        }
        let metadata = metadata.map(|metadata| Value::Object(metadata).to_string());
        check_size("the metadata of a memory", metadata.as_ref().map_or(0, String::len), MAX_METADATA_BYTES)?;
        let (principal, key) = (principal.to_owned(), key.to_owned());
        self.query(move |connection| {
            durable_transaction(connection, |transaction| {
                let saved = transaction.query_row(
                    "INSERT INTO memories (principal, key, value, metadata, created, updated)
                     VALUES (?1, ?2, ?3, coalesce(?4, '{}'), unixepoch(), unixepoch())
                     ON CONFLICT (principal, key) DO UPDATE SET value = excluded.value,
                         metadata = coalesce(?4, metadata), updated = excluded.updated
                     RETURNING created, updated",
                    params![principal, key, value, metadata],
                    |row| Ok(MemorySaved { created: row.get(0)?, updated: row.get(1)? }),
                )?;
                // After the insertion: an error rolls it back.
                check_quota(transaction, &principal)?;
                Ok(saved)
            })
        })
        .await
    }

    /// Returns none if there is no such memory.
    pub async fn load_memory(&self, principal: &str, key: &str) -> Result<Option<Memory>, StoreError> {
        let (principal, key) = (principal.to_owned(), key.to_owned());
        self.query(move |connection| {
            let query = "SELECT value, metadata FROM memories WHERE principal = ?1 AND key = ?2";
            let found = connection.prepare_cached(query)?.query_row([principal, key], |row| {
                Ok(Memory { value: row.get(0)?, metadata: metadata(&row.get::<_, String>(1)?) })
            });
            Ok(found.optional()?)
        })
        .await
    }

    /// Deletes a memory. Returns false if there is none.
    pub async fn delete_memory(&self, principal: &str, key: &str) -> Result<bool, StoreError> {
        let (principal, key) = (principal.to_owned(), key.to_owned());
        self.query(move |connection| {
            durable_transaction(connection, |transaction| {
                let statement = "DELETE FROM memories WHERE principal = ?1 AND key = ?2";
                Ok(transaction.execute(statement, [principal, key])? > 0)
            })
        })
        .await
    }

    /// Returns all memories of a principal without their values, ordered by key.
    pub async fn memories(&self, principal: &str) -> Result<Vec<MemoryInfo>, StoreError> {
        let principal = principal.to_owned();
        self.query(move |connection| {
            let mut statement = connection.prepare_cached(
                "SELECT key, octet_length(value), created, updated, metadata FROM memories
                 WHERE principal = ?1 ORDER BY key",
            )?;
            let rows = statement.query_map([principal], info)?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
        .await
    }

    /// Returns none if there is no such memory.
    pub async fn memory_info(&self, principal: &str, key: &str) -> Result<Option<MemoryInfo>, StoreError> {
        let (principal, key) = (principal.to_owned(), key.to_owned());
        self.query(move |connection| {
            let mut statement = connection.prepare_cached(
                "SELECT key, octet_length(value), created, updated, metadata FROM memories
                 WHERE principal = ?1 AND key = ?2",
            )?;
            Ok(statement.query_row([principal, key], info).optional()?)
        })
        .await
    }
}

fn info(row: &Row<'_>) -> rusqlite::Result<MemoryInfo> {
    Ok(MemoryInfo {
        key: row.get(0)?,
        size: row.get(1)?,
        created: row.get(2)?,
        updated: row.get(3)?,
        metadata: metadata(&row.get::<_, String>(4)?),
    })
}

fn metadata(text: &str) -> Map<String, Value> {
    serde_json::from_str(text).unwrap_or_default()
}

fn check_key(key: &str) -> Result<(), Rejected> {
    // Invisible characters and changes of the writing direction would make two keys look the same.
    let is_invisible = |char: char| matches!(char, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}');
    let reason = if key.trim().is_empty() {
        "it is empty"
    } else if key.chars().take(MAX_KEY_CHARS + 1).count() > MAX_KEY_CHARS {
        "it is longer than 256 characters"
    } else if key.chars().any(|char| char.is_control() || is_invisible(char)) {
        "it contains unprintable characters"
    } else {
        return Ok(());
    };
    Err(Rejected::MemoryKey { reason })
}

fn check_size(what: &'static str, bytes: usize, max: u64) -> Result<(), Rejected> {
    let bytes = bytes as u64;
    if bytes > max { Err(Rejected::TooLarge { what, bytes, max }) } else { Ok(()) }
}

fn check_quota(transaction: &Transaction<'_>, principal: &str) -> Result<(), StoreError> {
    let (keys, bytes): (u64, u64) = transaction.query_row(
        "SELECT count(*), coalesce(sum(octet_length(key) + octet_length(value) + octet_length(metadata)), 0)
         FROM memories WHERE principal = ?1",
        [principal],
        |row| Ok((row.get(0)?, row.get(1)?)),
    )?;
    let collection = Collection::Memories;
    if keys > MAX_KEYS {
        return Err(Rejected::TooMany { collection, max: MAX_KEYS }.into());
    }
    if bytes > MAX_TOTAL_BYTES {
        return Err(Rejected::QuotaExceeded { collection, bytes, max: MAX_TOTAL_BYTES }.into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn open() -> (tempfile::TempDir, Store) {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("state")).unwrap();
        (directory, store)
    }

    async fn save(store: &Store, principal: &str, key: &str, value: &str) -> Result<MemorySaved, StoreError> {
        store.save_memory(principal, key, value.into(), None).await
    }

    async fn load(store: &Store, principal: &str, key: &str) -> Option<String> {
        store.load_memory(principal, key).await.unwrap().map(|memory| memory.value)
    }

    fn object(value: Value) -> Map<String, Value> {
        let Value::Object(object) = value else { panic!("not an object") };
        object
    }

    #[tokio::test]
    async fn memories_survive_a_restart_and_created_never_changes() {
        let (directory, store) = open();
        let number = "123456789012345678901234567890.5";
        let metadata = object(json!({"tags": ["a"]}));
        store.save_memory("ci", "n", number.into(), Some(metadata.clone())).await.unwrap();
        let backdate = |connection: &mut rusqlite::Connection| {
            Ok(connection.execute("UPDATE memories SET created = 5, updated = 5", [])?)
        };
        store.query(backdate).await.unwrap();
        let saved = save(&store, "ci", "n", "[1]").await.unwrap();
        assert_eq!(saved.created, 5);
        assert!(saved.updated > 1_700_000_000);
        save(&store, "ci", "big", number).await.unwrap();
        store.close().await;

        let store = Store::open(&directory.path().join("state")).unwrap();
        assert_eq!(load(&store, "ci", "big").await.unwrap(), number, "every digit");
        let loaded = store.load_memory("ci", "n").await.unwrap().unwrap();
        assert_eq!(loaded, Memory { value: "[1]".into(), metadata }, "metadata remains unless new metadata is given");
        let info = store.memory_info("ci", "n").await.unwrap().unwrap();
        assert_eq!((info.size, info.created, info.updated), (3, 5, saved.updated));
        let listed = store.memories("ci").await.unwrap();
        assert_eq!(listed.iter().map(|info| info.key.as_str()).collect::<Vec<_>>(), ["big", "n"]);
        assert_eq!(listed[1], info);
        store.save_memory("ci", "n", "2".into(), Some(Map::new())).await.unwrap();
        assert_eq!(store.load_memory("ci", "n").await.unwrap().unwrap().metadata, Map::new());
        assert!(store.delete_memory("ci", "n").await.unwrap());
        assert!(!store.delete_memory("ci", "n").await.unwrap());
        assert_eq!(load(&store, "ci", "n").await, None);
        assert_eq!(store.memory_info("ci", "n").await.unwrap(), None);
    }

    #[tokio::test]
    async fn principals_do_not_see_memories_of_each_other() {
        let (_directory, store) = open();
        save(&store, "ci", "plan", "1").await.unwrap();
        save(&store, "other", "plan", "2").await.unwrap();
        assert_eq!(load(&store, "third", "plan").await, None);
        assert_eq!(store.memories("third").await.unwrap(), []);
        assert!(!store.delete_memory("third", "plan").await.unwrap());
        assert!(store.delete_memory("other", "plan").await.unwrap());
        assert_eq!(load(&store, "ci", "plan").await.unwrap(), "1");
    }

    #[tokio::test]
    async fn invalid_keys_and_values_are_rejected() {
        let (_directory, store) = open();
        for key in ["a", "a b", "päth/to: \"x\" 🦀", "'; DROP TABLE memories", "é".repeat(256).as_str()] {
            save(&store, "ci", key, "null").await.unwrap();
            assert_eq!(load(&store, "ci", key).await.unwrap(), "null");
        }
        let long = "a".repeat(257);
        for key in ["", "  ", "a\nb", "a\0", "\u{7f}", "a\u{202e}b", "a\u{200b}", long.as_str()] {
            let error = save(&store, "ci", key, "1").await.unwrap_err();
            assert!(matches!(error, StoreError::Rejected(Rejected::MemoryKey { .. })), "{key:?}: {error}");
        }
        for value in ["", "nope", "{", "1 2", "NaN", "{'a': 1}"] {
            let error = save(&store, "ci", "k", value).await.unwrap_err();
            assert!(matches!(error, StoreError::Rejected(Rejected::NotJson)), "{value:?}: {error}");
        }
        assert_eq!(store.memories("ci").await.unwrap().len(), 5);
    }

    #[tokio::test]
    async fn quota_of_each_principal_is_enforced() {
        let (_directory, store) = open();
        let large = format!("\"{}\"", "x".repeat((1 << 20) - 2));
        let error = save(&store, "ci", "k", &format!("{large} ")).await.unwrap_err();
        assert_eq!(error.to_string(), "the value of a memory has 1048577 bytes; the limit is 1 MiB");
        let error = store
            .save_memory("ci", "k", "1".into(), Some(object(json!({"x": "y".repeat(16 << 10)}))))
            .await
            .unwrap_err();
        assert_eq!(error.to_string(), "the metadata of a memory has 16392 bytes; the limit is 16 KiB");
        for number in 0..15 {
            save(&store, "ci", &number.to_string(), &large).await.unwrap();
        }
        let error = save(&store, "ci", "more", &large).await.unwrap_err();
        assert!(matches!(&error, StoreError::Rejected(reason) if reason.is_limit()), "{error}");
        assert_eq!(error.to_string(), "your memories would have 16777272 bytes in total; the limit is 16 MiB");
        assert_eq!(load(&store, "ci", "more").await, None);
        save(&store, "ci", "3", &large).await.unwrap();
        save(&store, "other", "more", &large).await.unwrap();

        for number in 0..1000 {
            save(&store, "many", &number.to_string(), "1").await.unwrap();
        }
        let error = save(&store, "many", "one more", "1").await.unwrap_err();
        assert_eq!(error.to_string(), "there are already 1000 memories, which is the limit");
        save(&store, "many", "7", "2").await.unwrap();
        store.delete_memory("many", "0").await.unwrap();
        save(&store, "many", "one more", "1").await.unwrap();
    }
}
