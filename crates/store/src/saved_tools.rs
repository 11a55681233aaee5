//! The saved tools table: functions that principals store for later sessions, in versions.
//!
//! Principals and languages cannot see the tools of each other. A version number never refers to another source: if a
//! tool is deleted and its name saved again, the numbers continue.

use ringfence_core::Language;
use rusqlite::{OptionalExtension as _, Transaction, params};
use serde::Serialize;

use crate::connection::durable_transaction;
use crate::error::{Collection, Rejected, StoreError};
use crate::store::Store;

const MAX_NAME_CHARS: usize = 64;
const MAX_SOURCE_BYTES: u64 = 256 << 10;
/// Maximum size of a docstring in lists; the source contains all of it.
const MAX_DOC_BYTES: usize = 4 << 10;
/// Maximum number of tools of one principal, in all languages.
const MAX_NAMES: u64 = 200;
/// Maximum size of all versions of all tools of one principal.
const MAX_TOTAL_BYTES: u64 = 8 << 20;
/// Number of versions of a tool that are retained.
const MAX_VERSIONS: u64 = 20;
/// Number of deleted tools of one principal whose last version is remembered.
const MAX_DELETED: u64 = 200;

/// One version of a saved function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SavedTool {
    pub name: String,
    pub version: u64,
    pub source: String,
    pub doc: String,
    /// Seconds since the epoch.
    pub saved: u64,
}

/// A saved function without its source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SavedToolInfo {
    pub name: String,
    /// The latest version.
    pub version: u64,
    /// Number of retained versions.
    pub versions: u64,
    /// Docstring of the latest version.
    pub doc: String,
    /// The time at which the latest version was saved, in seconds since the epoch.
    pub saved: u64,
}

impl Store {
    /// Stores a function as the next version of its name, and returns the number of the version.
    pub async fn save_tool(
        &self,
        principal: &str,
        language: Language,
        name: &str,
        source: String,
        doc: &str,
    ) -> Result<u64, StoreError> {
        check_name(name)?;
        let bytes = source.len() as u64;
        if bytes > MAX_SOURCE_BYTES {
            return Err(Rejected::TooLarge { what: "the source of a tool", bytes, max: MAX_SOURCE_BYTES }.into());
        }
        let (principal, name) = (principal.to_owned(), name.to_owned());
        let doc = truncate(doc).to_owned();
        self.query(move |connection| {
            durable_transaction(connection, |transaction| {
                let version = next_version(transaction, &principal, language, &name)?;
                transaction.execute(
                    "INSERT INTO saved_tools (principal, language, name, version, source, doc, saved)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6, unixepoch())",
                    params![principal, language.name(), name, version, source, doc],
                )?;
                transaction.execute(
                    "DELETE FROM saved_tools WHERE principal = ?1 AND language = ?2 AND name = ?3 AND version <= ?4",
                    params![principal, language.name(), name, version.saturating_sub(MAX_VERSIONS)],
                )?;
                // After the insertion: an error rolls it back.
                check_quota(transaction, &principal)?;
                Ok(version)
            })
        })
        .await
    }

    /// Returns the functions of a principal without their sources, ordered by name.
    pub async fn saved_tools(&self, principal: &str, language: Language) -> Result<Vec<SavedToolInfo>, StoreError> {
        let principal = principal.to_owned();
        self.query(move |connection| {
            // With max(), the other columns are those of the same row: https://sqlite.org/lang_select.html#bareagg
            let mut statement = connection.prepare_cached(
                "SELECT name, max(version), count(*), doc, saved FROM saved_tools
                 WHERE principal = ?1 AND language = ?2 GROUP BY name ORDER BY name",
            )?;
            let rows = statement.query_map(params![principal, language.name()], |row| {
                Ok(SavedToolInfo {
                    name: row.get(0)?,
                    version: row.get(1)?,
                    versions: row.get(2)?,
                    doc: row.get(3)?,
                    saved: row.get(4)?,
                })
            })?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
        .await
    }

    /// Returns a version of a saved function; the latest one if `version` is none.
    pub async fn saved_tool(
        &self,
        principal: &str,
        language: Language,
        name: &str,
        version: Option<u64>,
    ) -> Result<Option<SavedTool>, StoreError> {
        // A number that does not fit into the column is not a version either.
        let version = match version.map(i64::try_from) {
            Some(Err(_)) => return Ok(None),
            Some(Ok(version)) => Some(version),
            None => None,
        };
        let (principal, name) = (principal.to_owned(), name.to_owned());
        self.query(move |connection| {
            let mut statement = connection.prepare_cached(
                "SELECT name, version, source, doc, saved FROM saved_tools
                 WHERE principal = ?1 AND language = ?2 AND name = ?3 AND (?4 IS NULL OR version = ?4)
                 ORDER BY version DESC LIMIT 1",
            )?;
            let found = statement.query_row(params![principal, language.name(), name, version], |row| {
                Ok(SavedTool {
                    name: row.get(0)?,
                    version: row.get(1)?,
                    source: row.get(2)?,
                    doc: row.get(3)?,
                    saved: row.get(4)?,
                })
            });
            Ok(found.optional()?)
        })
        .await
    }

    /// Deletes all versions of a function. Returns false if there is none of this name.
    pub async fn delete_saved_tool(&self, principal: &str, language: Language, name: &str) -> Result<bool, StoreError> {
        let (principal, name) = (principal.to_owned(), name.to_owned());
        self.query(move |connection| {
            durable_transaction(connection, |transaction| {
                let key = params![principal, language.name(), name];
                transaction.execute(
                    "INSERT OR REPLACE INTO deleted_tools (principal, language, name, version)
                     SELECT principal, language, name, max(version) FROM saved_tools
                     WHERE principal = ?1 AND language = ?2 AND name = ?3 GROUP BY name",
                    key,
                )?;
                transaction.execute(
                    "DELETE FROM deleted_tools WHERE principal = ?1 AND rowid NOT IN
                     (SELECT rowid FROM deleted_tools WHERE principal = ?1 ORDER BY rowid DESC LIMIT ?2)",
                    params![principal, MAX_DELETED],
                )?;
                let statement = "DELETE FROM saved_tools WHERE principal = ?1 AND language = ?2 AND name = ?3";
                Ok(transaction.execute(statement, key)? > 0)
            })
        })
        .await
    }
}

/// A name must be valid for a Python function in every language: it is then an identifier in JavaScript, too.
fn check_name(name: &str) -> Result<(), Rejected> {
    let reason = if name.is_empty() {
        "it is empty"
    } else if name.len() > MAX_NAME_CHARS {
        "it is longer than 64 characters"
    } else if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
        "it contains characters other than ASCII letters, digits and _"
    } else if !name.starts_with(|first: char| first.is_ascii_alphabetic()) {
        "it does not begin with a letter"
    } else if KEYWORDS.contains(&name) {
        "it is a Python keyword"
    } else {
        return Ok(());
    };
    Err(Rejected::ToolName { name: name.chars().take(MAX_NAME_CHARS).collect(), reason })
}

/// Cuts a docstring at the end of a character.
fn truncate(doc: &str) -> &str {
    let cut = (0..=MAX_DOC_BYTES.min(doc.len())).rev().find(|at| doc.is_char_boundary(*at));
    &doc[..cut.unwrap_or_default()]
}

const KEYWORDS: [&str; 35] = [
    "False", "None", "True", "and", "as", "assert", "async", "await", "break", "class", "continue", "def", "del",
    "elif", "else", "except", "finally", "for", "from", "global", "if", "import", "in", "is", "lambda", "nonlocal",
    "not", "or", "pass", "raise", "return", "try", "while", "with", "yield",
];

fn next_version(
    transaction: &Transaction<'_>,
    principal: &str,
    language: Language,
    name: &str,
) -> rusqlite::Result<u64> {
    let last: u64 = transaction.query_row(
        "SELECT coalesce(max(version), 0) FROM (
             SELECT version FROM saved_tools WHERE principal = ?1 AND language = ?2 AND name = ?3
             UNION ALL SELECT version FROM deleted_tools WHERE principal = ?1 AND language = ?2 AND name = ?3)",
        params![principal, language.name(), name],
        |row| row.get(0),
    )?;
    Ok(last + 1)
}

fn check_quota(transaction: &Transaction<'_>, principal: &str) -> Result<(), StoreError> {
    let (names, bytes): (u64, u64) = transaction.query_row(
        "SELECT count(DISTINCT language || '.' || name), coalesce(sum(octet_length(source) + octet_length(doc)), 0)
         FROM saved_tools WHERE principal = ?1",
        [principal],
        |row| Ok((row.get(0)?, row.get(1)?)),
    )?;
    let collection = Collection::SavedTools;
    if names > MAX_NAMES {
        return Err(Rejected::TooMany { collection, max: MAX_NAMES }.into());
    }
    if bytes > MAX_TOTAL_BYTES {
        return Err(Rejected::QuotaExceeded { collection, bytes, max: MAX_TOTAL_BYTES }.into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open() -> (tempfile::TempDir, Store) {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("state")).unwrap();
        (directory, store)
    }

    async fn save(store: &Store, principal: &str, name: &str, source: &str) -> Result<u64, StoreError> {
        store.save_tool(principal, Language::Python, name, source.into(), "Counts.").await
    }

    async fn source(store: &Store, name: &str, version: Option<u64>) -> Option<(u64, String)> {
        let found = store.saved_tool("ci", Language::Python, name, version).await.unwrap();
        found.map(|tool| (tool.version, tool.source))
    }

    async fn names(store: &Store, principal: &str, language: Language) -> Vec<(String, u64, u64)> {
        let found = store.saved_tools(principal, language).await.unwrap();
        found.into_iter().map(|tool| (tool.name, tool.version, tool.versions)).collect()
    }

    #[tokio::test]
    async fn second_save_creates_a_version_and_retains_the_first() {
        let (directory, store) = open();
        assert_eq!(save(&store, "ci", "count", "one").await.unwrap(), 1);
        assert_eq!(save(&store, "ci", "count", "two").await.unwrap(), 2);
        assert_eq!(save(&store, "ci", "add", "x").await.unwrap(), 1);
        store.close().await;
        let store = Store::open(&directory.path().join("state")).unwrap();
        assert_eq!(source(&store, "count", None).await, Some((2, "two".into())));
        assert_eq!(source(&store, "count", Some(1)).await, Some((1, "one".into())));
        for none in [0, 3, u64::MAX] {
            assert_eq!(source(&store, "count", Some(none)).await, None);
        }
        assert_eq!(names(&store, "ci", Language::Python).await, [("add".into(), 1, 1), ("count".into(), 2, 2)]);
        let listed = &store.saved_tools("ci", Language::Python).await.unwrap()[1];
        assert_eq!(listed.doc, "Counts.");
        assert!(listed.saved > 1_700_000_000, "{}", listed.saved);
    }

    #[tokio::test]
    async fn last_twenty_versions_are_retained() {
        let (_directory, store) = open();
        for number in 1..=25 {
            assert_eq!(save(&store, "ci", "count", &number.to_string()).await.unwrap(), number);
        }
        assert_eq!(names(&store, "ci", Language::Python).await, [("count".into(), 25, 20)]);
        assert_eq!(source(&store, "count", Some(5)).await, None);
        assert_eq!(source(&store, "count", Some(6)).await, Some((6, "6".into())));
    }

    #[tokio::test]
    async fn version_number_is_never_reused() {
        let (_directory, store) = open();
        save(&store, "ci", "count", "one").await.unwrap();
        save(&store, "ci", "count", "two").await.unwrap();
        assert!(store.delete_saved_tool("ci", Language::Python, "count").await.unwrap());
        assert!(!store.delete_saved_tool("ci", Language::Python, "count").await.unwrap());
        assert_eq!(source(&store, "count", None).await, None);
        assert_eq!(save(&store, "ci", "count", "three").await.unwrap(), 3);
        assert_eq!(names(&store, "ci", Language::Python).await, [("count".into(), 3, 1)]);
    }

    #[tokio::test]
    async fn principals_and_languages_do_not_see_tools_of_each_other() {
        let (_directory, store) = open();
        save(&store, "ci", "count", "mine").await.unwrap();
        store.save_tool("ci", Language::Node, "count", "js".into(), "").await.unwrap();
        assert_eq!(save(&store, "other", "count", "theirs").await.unwrap(), 1);
        assert!(!store.delete_saved_tool("third", Language::Python, "count").await.unwrap());
        assert!(store.delete_saved_tool("other", Language::Python, "count").await.unwrap());
        assert_eq!(source(&store, "count", None).await, Some((1, "mine".into())));
        let script = store.saved_tool("ci", Language::Node, "count", None).await.unwrap().unwrap();
        assert_eq!((script.version, script.source.as_str()), (1, "js"));
        assert_eq!(names(&store, "other", Language::Python).await, []);
        assert_eq!(names(&store, "ci", Language::Bash).await, []);
    }

    #[tokio::test]
    async fn invalid_names_are_rejected() {
        let (_directory, store) = open();
        for name in ["count", "Count2", "c_o_u_n_t", "match", "a".repeat(64).as_str()] {
            save(&store, "ci", name, "x").await.unwrap();
        }
        let invalid = ["", "_hidden", "2fast", "a b", "a-b", "naïve", "a\0", "a'; --", "lambda", "None", "../a"];
        let long = "a".repeat(100_000);
        for name in invalid.into_iter().chain([long.as_str()]) {
            let error = save(&store, "ci", name, "x").await.unwrap_err();
            assert!(matches!(error, StoreError::Rejected(Rejected::ToolName { .. })), "{error}");
            assert!(error.to_string().len() < 200 && !error.hints().is_empty(), "{error}");
        }
        assert_eq!(names(&store, "ci", Language::Python).await.len(), 5);
    }

    #[tokio::test]
    async fn quota_of_each_principal_is_enforced() {
        let (_directory, store) = open();
        let large = "x".repeat(256 << 10);
        let error = save(&store, "ci", "large", &format!("{large}x")).await.unwrap_err();
        assert_eq!(error.to_string(), "the source of a tool has 262145 bytes; the limit is 256 KiB");
        for number in 0..31 {
            save(&store, "ci", &format!("large{number}"), &large).await.unwrap();
        }
        let error = save(&store, "ci", "count", &large).await.unwrap_err();
        assert!(matches!(&error, StoreError::Rejected(reason) if reason.is_limit()), "{error}");
        assert_eq!(error.to_string(), "your saved tools would have 8388832 bytes in total; the limit is 8 MiB");
        assert_eq!(names(&store, "ci", Language::Python).await.len(), 31);
        save(&store, "other", "count", &large).await.unwrap();

        for number in 0..200 {
            save(&store, "many", &format!("t{number}"), "x").await.unwrap();
        }
        let error = save(&store, "many", "one_more", "x").await.unwrap_err();
        assert_eq!(error.to_string(), "there are already 200 saved tools, which is the limit");
        assert!(store.save_tool("many", Language::Node, "other", "x".into(), "").await.is_err());
        assert_eq!(save(&store, "many", "t7", "again").await.unwrap(), 2, "a new version is not a new tool");
        store.delete_saved_tool("many", Language::Python, "t0").await.unwrap();
        save(&store, "many", "one_more", "x").await.unwrap();
    }

    #[tokio::test]
    async fn long_docstring_is_truncated_in_lists() {
        let (_directory, store) = open();
        let doc = "é".repeat(10_000);
        store.save_tool("ci", Language::Python, "count", "x".into(), &doc).await.unwrap();
        let listed = &store.saved_tools("ci", Language::Python).await.unwrap()[0].doc;
        assert_eq!(*listed, "é".repeat(2048));
    }
}
