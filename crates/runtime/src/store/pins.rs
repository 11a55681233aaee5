//! What a person has accepted of a server's tools.

use rusqlite::params;

use super::servers::durably;
use super::{Store, StoreError};

/// A tool as it was when it was accepted.
#[derive(Debug, Clone, PartialEq)]
pub struct Pin {
    pub tool: String,
    /// What was shown of it.
    pub accepted: serde_json::Value,
}

impl Store {
    /// What was accepted of a server, by the tools' names.
    pub async fn pins(&self, server: &str) -> Result<Vec<Pin>, StoreError> {
        let server = server.to_owned();
        self.with(move |connection| {
            let query = "SELECT tool, accepted FROM pins WHERE server = ?1 ORDER BY tool";
            let mut statement = connection.prepare_cached(query)?;
            let rows = statement.query_map([server], |row| {
                let accepted = serde_json::from_str(&row.get::<_, String>(1)?).unwrap_or_default();
                Ok(Pin { tool: row.get(0)?, accepted })
            })?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
        .await
    }

    /// Accepts tools of a server; what was accepted of its other tools stays.
    pub async fn set_pins(&self, server: &str, pins: Vec<Pin>) -> Result<(), StoreError> {
        let server = server.to_owned();
        self.with(move |connection| {
            durably(connection, |transaction| {
                let mut statement = transaction
                    .prepare_cached("INSERT OR REPLACE INTO pins (server, tool, accepted) VALUES (?1, ?2, ?3)")?;
                for Pin { tool, accepted } in pins {
                    statement.execute(params![server, tool, accepted.to_string()])?;
                }
                Ok(())
            })
        })
        .await
    }

    /// Forgets what was accepted: of one tool, or of all of a server.
    pub async fn remove_pins(&self, server: &str, tool: Option<&str>) -> Result<(), StoreError> {
        let (server, tool) = (server.to_owned(), tool.map(ToOwned::to_owned));
        self.with(move |connection| {
            durably(connection, |transaction| {
                let statement = "DELETE FROM pins WHERE server = ?1 AND (?2 IS NULL OR tool = ?2)";
                transaction.execute(statement, params![server, tool])?;
                Ok(())
            })
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::servers::entry_from_json;
    use crate::store::Taken;

    fn pin(tool: &str, description: &str) -> Pin {
        Pin { tool: tool.into(), accepted: json!({"description": description}) }
    }

    #[tokio::test]
    async fn what_was_accepted_is_kept_by_server_and_tool() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("state")).unwrap();
        store.set_pins("one", vec![pin("b", "1"), pin("a", "1")]).await.unwrap();
        store.set_pins("other", vec![pin("a", "9")]).await.unwrap();
        store.set_pins("one", vec![pin("b", "2")]).await.unwrap();
        assert_eq!(store.pins("one").await.unwrap(), [pin("a", "1"), pin("b", "2")]);
        store.remove_pins("one", Some("a")).await.unwrap();
        assert_eq!(store.pins("one").await.unwrap(), [pin("b", "2")]);
        store.remove_pins("one", None).await.unwrap();
        assert_eq!(store.pins("one").await.unwrap(), []);
        assert_eq!(store.pins("other").await.unwrap(), [pin("a", "9")]);
    }

    #[tokio::test]
    async fn a_server_takes_its_pins_with_it() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("state")).unwrap();
        let entry = entry_from_json("a", &json!({"command": "x"})).unwrap().0;
        let entry = store.add_server(entry, None, Taken::Refuse).await.unwrap();
        store.set_pins(&entry.uuid, vec![pin("a", "1")]).await.unwrap();
        store.remove_server("a").await.unwrap();
        assert_eq!(store.pins(&entry.uuid).await.unwrap(), []);
    }
}
