//! The servers that were added at run time.
//!
//! Unlike sessions they must survive a power cut too, so their commits wait for the disk. Any process may change them;
//! [`Store::server_changes`] tells whether one has.

use rusqlite::{Connection, OptionalExtension as _, Transaction, TransactionBehavior, params};

use super::{Store, StoreError};
use ringfence_entries::{EntryError, ServerEntry, entry_from_json, entry_to_json, new_uuid};

/// A server as it is remembered.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredServer {
    pub name: String,
    pub uuid: String,
    /// What it was imported from, if it was.
    pub origin: Option<String>,
    /// An error if it was written by another version and makes no sense to this one.
    pub entry: Result<ServerEntry, EntryError>,
}

/// What to do about a name that is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    Refuse,
    /// The server stays the same one, with its uuid and pins, and gets this entry.
    Replace,
}

impl Store {
    /// All servers, by name.
    pub async fn servers(&self) -> Result<Vec<StoredServer>, StoreError> {
        self.with(|connection| list(connection).map_err(Into::into)).await
    }

    /// Adds a server, and gives the entry with the uuid that it has from now on.
    pub async fn add_server(
        &self,
        entry: ServerEntry,
        origin: Option<String>,
        taken: Taken,
    ) -> Result<ServerEntry, StoreError> {
        self.with(move |connection| {
            durably(connection, |transaction| add(transaction, entry, origin.as_deref(), taken))
        })
        .await
    }

    /// Enables or disables a server; false if there is none of this name.
    pub async fn enable_server(&self, name: &str, enable: bool) -> Result<bool, StoreError> {
        let name = name.to_owned();
        self.with(move |connection| {
            durably(connection, |transaction| {
                let text: Option<String> = transaction
                    .query_row("SELECT entry FROM servers WHERE name = ?1", [&name], |row| row.get(0))
                    .optional()?;
                let Some(text) = text else { return Ok(false) };
                let mut entry: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
                if !entry.is_object() {
                    return Err(StoreError::Write(format!("the entry of `{name}` makes no sense")));
                }
                // Under this one spelling, since whatever is stored was written by us.
                entry["enable"] = enable.into();
                transaction
                    .execute("UPDATE servers SET entry = ?2 WHERE name = ?1", params![name, entry.to_string()])?;
                Ok(true)
            })
        })
        .await
    }

    /// Forgets a server, what was accepted of it and what it offered; false if there is none of this name.
    pub async fn remove_server(&self, name: &str) -> Result<bool, StoreError> {
        let name = name.to_owned();
        self.with(move |connection| {
            durably(connection, |transaction| {
                for table in ["pins", "catalogues"] {
                    let its_rows = "WHERE server = (SELECT uuid FROM servers WHERE name = ?1)";
                    transaction.execute(&format!("DELETE FROM {table} {its_rows}"), [&name])?;
                }
                Ok(transaction.execute("DELETE FROM servers WHERE name = ?1", [&name])? > 0)
            })
        })
        .await
    }

    /// A number that grows whenever any process changes the servers or the pins. Cheap.
    pub async fn server_changes(&self) -> Result<u64, StoreError> {
        let query = "SELECT number FROM server_changes";
        self.with(move |connection| Ok(connection.prepare_cached(query)?.query_row([], |row| row.get(0))?)).await
    }
}

/// A transaction whose commit is on the disk when this returns.
pub(super) fn durably<T>(
    connection: &mut Connection,
    work: impl FnOnce(&Transaction<'_>) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    connection.pragma_update(None, "synchronous", "full")?;
    let outcome = (|| {
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let value = work(&transaction)?;
        transaction.commit()?;
        Ok(value)
    })();
    connection.pragma_update(None, "synchronous", "normal")?;
    outcome
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
    taken: Taken,
) -> Result<ServerEntry, StoreError> {
    let known: Option<String> = transaction
        .query_row("SELECT uuid FROM servers WHERE name = ?1", [&entry.name], |row| row.get(0))
        .optional()?;
    let uuid = match (known, taken) {
        (Some(_), Taken::Refuse) => return Err(StoreError::NameTaken { name: entry.name }),
        (Some(uuid), Taken::Replace) => uuid,
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

    async fn found(store: &Store) -> Vec<ServerEntry> {
        store.servers().await.unwrap().into_iter().map(|server| server.entry.unwrap()).collect()
    }

    #[tokio::test]
    async fn servers_are_added_changed_and_removed_and_stay_after_a_restart() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state");
        let store = Store::open(&path).unwrap();
        let second = store.add_server(entry("b", "x"), None, Taken::Refuse).await.unwrap();
        let first = store.add_server(entry("a", "y"), Some("Cursor".into()), Taken::Refuse).await.unwrap();
        assert_ne!(first.uuid, entry("a", "y").uuid, "a stored one has an id of its own");
        assert_eq!(found(&store).await, [first.clone(), second.clone()]);

        let taken = store.add_server(entry("a", "z"), None, Taken::Refuse).await;
        assert!(matches!(taken, Err(StoreError::NameTaken { name }) if name == "a"));
        let edited = store.add_server(entry("a", "z"), None, Taken::Replace).await.unwrap();
        assert_eq!(edited.uuid, first.uuid);
        assert!(store.enable_server("a", false).await.unwrap());
        assert!(!store.enable_server("c", false).await.unwrap());
        store.close().await;

        let store = Store::open(&path).unwrap();
        assert_eq!(found(&store).await, [ServerEntry { enable: false, ..edited }, second.clone()]);
        assert!(store.enable_server("a", true).await.unwrap());
        assert!(found(&store).await[0].enable);
        assert!(store.remove_server("a").await.unwrap());
        assert!(!store.remove_server("a").await.unwrap());
        assert_eq!(found(&store).await, [second]);
    }

    #[tokio::test]
    async fn what_another_process_changes_is_noticed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state");
        let (one, other) = (Store::open(&path).unwrap(), Store::open(&path).unwrap());
        let mut before = one.server_changes().await.unwrap();
        let mut expect_change = async |one: &Store| {
            let now = one.server_changes().await.unwrap();
            assert!(now > before);
            before = now;
        };
        let added = other.add_server(entry("a", "x"), None, Taken::Refuse).await.unwrap();
        expect_change(&one).await;
        other.enable_server("a", false).await.unwrap();
        expect_change(&one).await;
        let pin = Pin { kind: PinKind::Tool, name: "t".into(), accepted: json!({}) };
        other.set_pins(&added.uuid, vec![pin]).await.unwrap();
        expect_change(&one).await;
        other.remove_server("a").await.unwrap();
        expect_change(&one).await;
        assert_eq!(one.server_changes().await.unwrap(), before, "reading changes nothing");
    }

    #[tokio::test]
    async fn a_row_of_another_version_does_not_hide_the_others() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("state")).unwrap();
        store.add_server(entry("a", "x"), None, Taken::Refuse).await.unwrap();
        store.add_server(entry("b", "x"), None, Taken::Refuse).await.unwrap();
        let spoil = |connection: &mut Connection| {
            Ok(connection.execute("UPDATE servers SET entry = '{\"mode\":\"quantum\"}' WHERE name = 'a'", [])?)
        };
        store.with(spoil).await.unwrap();
        let read: Vec<bool> = store.servers().await.unwrap().iter().map(|server| server.entry.is_ok()).collect();
        assert_eq!(read, [false, true]);
    }
}
