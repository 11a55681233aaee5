//! What callers keep for their later sessions: JSON by key.
//!
//! Everybody has their own. A value is kept as the text that it was given in: numbers of any size stay what they are.

use rusqlite::{OptionalExtension as _, Row, Transaction, params};
use serde::Serialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value};

use super::servers::durably;
use super::{NotKept, Store, StoreError};

/// What they are called in messages.
const WHAT: &str = "memories";

const MOST_KEY_CHARS: usize = 256;
const MOST_VALUE_BYTES: u64 = 1 << 20;
const MOST_METADATA_BYTES: u64 = 16 << 10;
/// Of one principal.
const MOST_KEYS: u64 = 1000;
const MOST_BYTES: u64 = 16 << 20;

/// A value, and what was said about it.
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
    /// Of the value as JSON, in bytes.
    pub size: u64,
    /// Seconds since the epoch.
    pub created: u64,
    pub updated: u64,
    pub metadata: Map<String, Value>,
}

/// When a memory was first and last saved, in seconds since the epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct MemorySaved {
    pub created: u64,
    pub updated: u64,
}

impl Store {
    /// Keeps a value, given as JSON, under a key, in place of what is there. Without metadata that which is there stays.
    pub async fn save_memory(
        &self,
        principal: &str,
        key: &str,
        value: String,
        metadata: Option<Map<String, Value>>,
    ) -> Result<MemorySaved, StoreError> {
        check_key(key)?;
        within("the value of a memory", value.len(), MOST_VALUE_BYTES)?;
        if serde_json::from_str::<IgnoredAny>(&value).is_err() {
            return Err(NotKept::NoJson.into());
        }
        let metadata = metadata.map(|metadata| Value::Object(metadata).to_string());
        within("the metadata of a memory", metadata.as_ref().map_or(0, String::len), MOST_METADATA_BYTES)?;
        let (principal, key) = (principal.to_owned(), key.to_owned());
        self.with(move |connection| {
            durably(connection, |transaction| {
                let saved = transaction.query_row(
                    "INSERT INTO memories (principal, key, value, metadata, created, updated)
                     VALUES (?1, ?2, ?3, coalesce(?4, '{}'), unixepoch(), unixepoch())
                     ON CONFLICT (principal, key) DO UPDATE SET value = excluded.value,
                         metadata = coalesce(?4, metadata), updated = excluded.updated
                     RETURNING created, updated",
                    params![principal, key, value, metadata],
                    |row| Ok(MemorySaved { created: row.get(0)?, updated: row.get(1)? }),
                )?;
                // Looked at afterwards: what does not fit is taken back with the transaction.
                check_room(transaction, &principal)?;
                Ok(saved)
            })
        })
        .await
    }

    pub async fn load_memory(&self, principal: &str, key: &str) -> Result<Option<Memory>, StoreError> {
        let (principal, key) = (principal.to_owned(), key.to_owned());
        self.with(move |connection| {
            let query = "SELECT value, metadata FROM memories WHERE principal = ?1 AND key = ?2";
            let found = connection.prepare_cached(query)?.query_row([principal, key], |row| {
                Ok(Memory { value: row.get(0)?, metadata: metadata(&row.get::<_, String>(1)?) })
            });
            Ok(found.optional()?)
        })
        .await
    }

    /// Forgets a value; false if there is none.
    pub async fn delete_memory(&self, principal: &str, key: &str) -> Result<bool, StoreError> {
        let (principal, key) = (principal.to_owned(), key.to_owned());
        self.with(move |connection| {
            durably(connection, |transaction| {
                let statement = "DELETE FROM memories WHERE principal = ?1 AND key = ?2";
                Ok(transaction.execute(statement, [principal, key])? > 0)
            })
        })
        .await
    }

    /// All that a caller has kept, by key.
    pub async fn memories(&self, principal: &str) -> Result<Vec<MemoryInfo>, StoreError> {
        let principal = principal.to_owned();
        self.with(move |connection| {
            let mut statement = connection.prepare_cached(
                "SELECT key, octet_length(value), created, updated, metadata FROM memories
                 WHERE principal = ?1 ORDER BY key",
            )?;
            let rows = statement.query_map([principal], info)?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
        .await
    }

    pub async fn memory_info(&self, principal: &str, key: &str) -> Result<Option<MemoryInfo>, StoreError> {
        let (principal, key) = (principal.to_owned(), key.to_owned());
        self.with(move |connection| {
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

fn check_key(key: &str) -> Result<(), NotKept> {
    // Characters that are not seen, or that turn text around, would make two keys look the same.
    let is_unseen = |char: char| matches!(char, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}');
    let why = if key.trim().is_empty() {
        "it is empty"
    } else if key.chars().take(MOST_KEY_CHARS + 1).count() > MOST_KEY_CHARS {
        "it is longer than 256 characters"
    } else if key.chars().any(|char| char.is_control() || is_unseen(char)) {
        "it has characters that cannot be printed"
    } else {
        return Ok(());
    };
    Err(NotKept::MemoryKey { why })
}

fn within(what: &'static str, bytes: usize, most: u64) -> Result<(), NotKept> {
    let bytes = bytes as u64;
    if bytes > most { Err(NotKept::TooLarge { what, bytes, most }) } else { Ok(()) }
}

fn check_room(transaction: &Transaction<'_>, principal: &str) -> Result<(), StoreError> {
    let (keys, bytes): (u64, u64) = transaction.query_row(
        "SELECT count(*), coalesce(sum(octet_length(key) + octet_length(value) + octet_length(metadata)), 0)
         FROM memories WHERE principal = ?1",
        [principal],
        |row| Ok((row.get(0)?, row.get(1)?)),
    )?;
    if keys > MOST_KEYS {
        return Err(NotKept::TooMany { what: WHAT, most: MOST_KEYS }.into());
    }
    if bytes > MOST_BYTES {
        return Err(NotKept::Full { what: WHAT, bytes, most: MOST_BYTES }.into());
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
        let Value::Object(object) = value else { panic!("no object") };
        object
    }

    #[tokio::test]
    async fn what_was_saved_is_there_after_a_restart_and_created_stays() {
        let (directory, store) = open();
        let number = "123456789012345678901234567890.5";
        let said = object(json!({"tags": ["a"]}));
        store.save_memory("ci", "n", number.into(), Some(said.clone())).await.unwrap();
        let backdate = |connection: &mut rusqlite::Connection| {
            Ok(connection.execute("UPDATE memories SET created = 5, updated = 5", [])?)
        };
        store.with(backdate).await.unwrap();
        let saved = save(&store, "ci", "n", "[1]").await.unwrap();
        assert_eq!(saved.created, 5);
        assert!(saved.updated > 1_700_000_000);
        save(&store, "ci", "big", number).await.unwrap();
        store.close().await;

        let store = Store::open(&directory.path().join("state")).unwrap();
        assert_eq!(load(&store, "ci", "big").await.unwrap(), number, "digit by digit");
        let kept = store.load_memory("ci", "n").await.unwrap().unwrap();
        assert_eq!(kept, Memory { value: "[1]".into(), metadata: said.clone() }, "metadata stays unless given");
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
    async fn principals_never_see_each_others() {
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
    async fn odd_keys_and_values_are_refused_with_a_reason() {
        let (_directory, store) = open();
        for key in ["a", "a b", "päth/to: \"x\" 🦀", "'; DROP TABLE memories", "é".repeat(256).as_str()] {
            save(&store, "ci", key, "null").await.unwrap();
            assert_eq!(load(&store, "ci", key).await.unwrap(), "null");
        }
        let long = "a".repeat(257);
        for key in ["", "  ", "a\nb", "a\0", "\u{7f}", "a\u{202e}b", "a\u{200b}", long.as_str()] {
            let error = save(&store, "ci", key, "1").await.unwrap_err();
            assert!(matches!(error, StoreError::NotKept(NotKept::MemoryKey { .. })), "{key:?}: {error}");
        }
        for value in ["", "nope", "{", "1 2", "NaN", "{'a': 1}"] {
            let error = save(&store, "ci", "k", value).await.unwrap_err();
            assert!(matches!(error, StoreError::NotKept(NotKept::NoJson)), "{value:?}: {error}");
        }
        assert_eq!(store.memories("ci").await.unwrap().len(), 5);
    }

    #[tokio::test]
    async fn quotas_hold_for_each_principal_and_what_does_not_fit_is_not_kept() {
        let (_directory, store) = open();
        let large = format!("\"{}\"", "x".repeat((1 << 20) - 2));
        let error = save(&store, "ci", "k", &format!("{large} ")).await.unwrap_err();
        assert_eq!(error.to_string(), "the value of a memory has 1048577 bytes, and may have 1 MiB at most");
        let error = store
            .save_memory("ci", "k", "1".into(), Some(object(json!({"x": "y".repeat(16 << 10)}))))
            .await
            .unwrap_err();
        assert_eq!(error.to_string(), "the metadata of a memory has 16392 bytes, and may have 16 KiB at most");
        for number in 0..15 {
            save(&store, "ci", &number.to_string(), &large).await.unwrap();
        }
        let error = save(&store, "ci", "more", &large).await.unwrap_err();
        assert!(matches!(&error, StoreError::NotKept(reason) if reason.is_limit()), "{error}");
        assert_eq!(error.to_string(), "your memories would have 16777272 bytes in all, and may have 16 MiB at most");
        assert_eq!(load(&store, "ci", "more").await, None);
        save(&store, "ci", "3", &large).await.unwrap();
        save(&store, "other", "more", &large).await.unwrap();

        for number in 0..1000 {
            save(&store, "many", &number.to_string(), "1").await.unwrap();
        }
        let error = save(&store, "many", "one more", "1").await.unwrap_err();
        assert_eq!(error.to_string(), "there are 1000 memories already, and there may be no more");
        save(&store, "many", "7", "2").await.unwrap();
        store.delete_memory("many", "0").await.unwrap();
        save(&store, "many", "one more", "1").await.unwrap();
    }
}
