//! The servers table: the MCP servers that were added with `ringfence server add` or over REST.
//!
//! Unlike sessions they must survive a power cut, so their commits wait for the disk. Any process may change them;
//! [`Store::server_changes`] shows whether one has.

use ringfence_entries::{EntryError, ServerEntry, entry_from_json, entry_to_json, new_uuid};
use rusqlite::{Connection, OptionalExtension as _, Transaction, params};

use crate::connection::durable_transaction;
use crate::error::StoreError;
use crate::store::Store;

/// A stored server.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredServer {
    pub name: String,
    pub uuid: String,
    /// The client from which it was imported.
    pub origin: Option<String>,
    /// An error if another version wrote it and this one cannot read it.
    pub entry: Result<ServerEntry, EntryError>,
}

/// The treatment of a server whose name already exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnConflict {
    Refuse,
    /// The existing server gets the new entry, and retains its uuid and pins.
    Replace,
}

impl Store {
    /// Returns all servers, ordered by name.
    pub async fn servers(&self) -> Result<Vec<StoredServer>, StoreError> {
        self.query(|connection| list(connection).map_err(Into::into)).await
    }

    /// Adds a server, and returns its entry with the uuid that was assigned.
    pub async fn add_server(
        &self,
        entry: ServerEntry,
        origin: Option<String>,
        on_conflict: OnConflict,
    ) -> Result<ServerEntry, StoreError> {
        self.query(move |connection| {
            durable_transaction(connection, |transaction| add(transaction, entry, origin.as_deref(), on_conflict))
        })
        .await
    }

    /// Enables or disables a server. Returns false if there is none of this name.
    pub async fn enable_server(&self, name: &str, enable: bool) -> Result<bool, StoreError> {
        let name = name.to_owned();
        self.query(move |connection| {
            durable_transaction(connection, |transaction| {
                let text: Option<String> = transaction
                    .query_row("SELECT entry FROM servers WHERE name = ?1", [&name], |row| row.get(0))
                    .optional()?;
                let Some(text) = text else { return Ok(false) };
                let mut entry: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
                if !entry.is_object() {
                    return Err(StoreError::Write(format!("the entry of `{name}` is not a JSON object")));
                }
                // Stored entries use this spelling only: they were written by `entry_to_json`.
                entry["enable"] = enable.into();
                transaction
                    .execute("UPDATE servers SET entry = ?2 WHERE name = ?1", params![name, entry.to_string()])?;
                Ok(true)
            })
        })
        .await
    }

    /// Deletes a server with its pins and its catalogue. Returns false if there is none of this name.
    pub async fn remove_server(&self, name: &str) -> Result<bool, StoreError> {
        let name = name.to_owned();
        self.query(move |connection| {
            durable_transaction(connection, |transaction| {
                for table in ["pins", "catalogues"] {
                    let condition = "WHERE server = (SELECT uuid FROM servers WHERE name = ?1)";
                    transaction.execute(&format!("DELETE FROM {table} {condition}"), [&name])?;
                }
                Ok(transaction.execute("DELETE FROM servers WHERE name = ?1", [&name])? > 0)
            })
        })
        .await
    }

    /// Returns a number that grows whenever any process changes the servers or the pins. Cheap.
    pub async fn server_changes(&self) -> Result<u64, StoreError> {
        let query = "SELECT number FROM server_changes";
        self.query(move |connection| Ok(connection.prepare_cached(query)?.query_row([], |row| row.get(0))?)).await
    }
}

fn list(connection: &Connection) -> rusqlite::Result<Vec<StoredServer>> {
    let mut statement = connection.prepare_cached("SELECT name, uuid, entry, origin FROM servers ORDER BY name")?;
    let rows = statement.query_map([], |row| {
        let (name, uuid, text): (String, String, String) = (row.get(0)?, row.get(1)?, row.get(2)?);
        let value = serde_json::from_str(&text).unwrap_or_default();
        let entry = entry_from_json(&name, &value).map(|(entry, _)| ServerEntry { uuid: uuid.clone(), ..entry });
        Ok(StoredServer { name, uuid, origin: row.get(3)?, entry })
    })?;
    rows.collect()
}

fn add(
    transaction: &Transaction<'_>,
    entry: ServerEntry,
    origin: Option<&str>,
    on_conflict: OnConflict,
) -> Result<ServerEntry, StoreError> {
    let known: Option<String> = transaction
        .query_row("SELECT uuid FROM servers WHERE name = ?1", [&entry.name], |row| row.get(0))
        .optional()?;
    let uuid = match (known, on_conflict) {
        (Some(_), OnConflict::Refuse) => return Err(StoreError::NameTaken { name: entry.name }),
        (Some(uuid), OnConflict::Replace) => uuid,
        (None, _) => new_uuid(),
    };
    let entry = ServerEntry { uuid, ..entry };
    transaction.execute(
        "INSERT INTO servers (name, uuid, entry, origin) VALUES (?1, ?2, ?3, ?4)
         ON CONFLICT (name) DO UPDATE SET entry = excluded.entry, origin = excluded.origin",
        params![entry.name, entry.uuid, entry_to_json(&entry).to_string(), origin],
    )?;
    Ok(entry)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{Pin, PinKind};

    fn entry(name: &str, command: &str) -> ServerEntry {
        entry_from_json(name, &json!({"command": command, "env": {"A": "${A}"}})).unwrap().0
    }

    async fn entries(store: &Store) -> Vec<ServerEntry> {
        store.servers().await.unwrap().into_iter().map(|server| server.entry.unwrap()).collect()
    }

    #[tokio::test]
    async fn servers_are_added_changed_removed_and_survive_a_restart() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state");
        let store = Store::open(&path).unwrap();
        let second = store.add_server(entry("b", "x"), None, OnConflict::Refuse).await.unwrap();
        let first = store.add_server(entry("a", "y"), Some("Cursor".into()), OnConflict::Refuse).await.unwrap();
        assert_ne!(first.uuid, entry("a", "y").uuid, "a stored server gets a new uuid");
        assert_eq!(entries(&store).await, [first.clone(), second.clone()]);

        let conflict = store.add_server(entry("a", "z"), None, OnConflict::Refuse).await;
        assert!(matches!(conflict, Err(StoreError::NameTaken { name }) if name == "a"));
        let edited = store.add_server(entry("a", "z"), None, OnConflict::Replace).await.unwrap();
        assert_eq!(edited.uuid, first.uuid);
        assert!(store.enable_server("a", false).await.unwrap());
        assert!(!store.enable_server("c", false).await.unwrap());
        store.close().await;

        let store = Store::open(&path).unwrap();
        assert_eq!(entries(&store).await, [ServerEntry { enable: false, ..edited }, second.clone()]);
        assert!(store.enable_server("a", true).await.unwrap());
        assert!(entries(&store).await[0].enable);
        assert!(store.remove_server("a").await.unwrap());
        assert!(!store.remove_server("a").await.unwrap());
        assert_eq!(entries(&store).await, [second]);
    }

    #[tokio::test]
    async fn changes_of_other_processes_are_noticed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state");
        let (observer, other) = (Store::open(&path).unwrap(), Store::open(&path).unwrap());
        let mut before = observer.server_changes().await.unwrap();
        let mut expect_change = async |observer: &Store| {
            let now = observer.server_changes().await.unwrap();
            assert!(now > before);
            before = now;
        };
        let added = other.add_server(entry("a", "x"), None, OnConflict::Refuse).await.unwrap();
        expect_change(&observer).await;
        other.enable_server("a", false).await.unwrap();
        expect_change(&observer).await;
        let pin = Pin { kind: PinKind::Tool, name: "t".into(), accepted: json!({}) };
        other.set_pins(&added.uuid, vec![pin]).await.unwrap();
        expect_change(&observer).await;
        other.remove_server("a").await.unwrap();
        expect_change(&observer).await;
        assert_eq!(observer.server_changes().await.unwrap(), before, "reading changes nothing");
    }

    #[tokio::test]
    async fn unreadable_entry_does_not_hide_others() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("state")).unwrap();
        store.add_server(entry("a", "x"), None, OnConflict::Refuse).await.unwrap();
        store.add_server(entry("b", "x"), None, OnConflict::Refuse).await.unwrap();
        let damage = |connection: &mut Connection| {
            Ok(connection.execute("UPDATE servers SET entry = '{\"mode\":\"quantum\"}' WHERE name = 'a'", [])?)
        };
        store.query(damage).await.unwrap();
        let read: Vec<bool> = store.servers().await.unwrap().iter().map(|server| server.entry.is_ok()).collect();
        assert_eq!(read, [false, true]);
    }
}
