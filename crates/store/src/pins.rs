//! The pins table: the items of servers that a person has accepted.

use rusqlite::params;

use crate::connection::durable_transaction;
use crate::error::StoreError;
use crate::store::Store;

/// The kind of an item that a server offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PinKind {
    Tool,
    Prompt,
    Resource,
    ResourceTemplate,
    Instructions,
    /// Marks pins that cover all kinds, including kinds of which the server had no items. Pins that were made when only
    /// tools could be pinned do not have this mark.
    AllKinds,
}

impl PinKind {
    const OTHERS: [Self; 5] =
        [Self::Prompt, Self::Resource, Self::ResourceTemplate, Self::Instructions, Self::AllKinds];

    fn name(self) -> &'static str {
        match self {
            Self::Tool => "tool",
            Self::Prompt => "prompt",
            Self::Resource => "resource",
            Self::ResourceTemplate => "template",
            Self::Instructions => "instructions",
            Self::AllKinds => "all",
        }
    }
}

/// An item as it was when it was accepted.
#[derive(Debug, Clone, PartialEq)]
pub struct Pin {
    pub kind: PinKind,
    /// The name of a tool or prompt, the URI of a resource; empty for the instructions and the mark, of which a server
    /// has one each.
    pub name: String,
    /// The fields that were shown to the person.
    pub accepted: serde_json::Value,
}

/// Separates the kind from the name in the column `tool`, which contained only names of tools in earlier versions.
const SEPARATOR: char = '\u{1f}';

/// Returns the value of the column `tool`: the plain name for tools, the kind and the name for everything else.
fn key(kind: PinKind, name: &str) -> String {
    match kind {
        PinKind::Tool if !name.starts_with(SEPARATOR) => name.to_owned(),
        kind => format!("{SEPARATOR}{}{SEPARATOR}{name}", kind.name()),
    }
}

fn parse_key(key: &str) -> (PinKind, &str) {
    let marked = key.strip_prefix(SEPARATOR).and_then(|rest| rest.split_once(SEPARATOR));
    let Some((kind, name)) = marked else { return (PinKind::Tool, key) };
    let kind = PinKind::OTHERS.into_iter().find(|known| known.name() == kind);
    (kind.unwrap_or(PinKind::Tool), name)
}

impl Store {
    /// Returns the accepted items of a server, ordered by key.
    pub async fn pins(&self, server: &str) -> Result<Vec<Pin>, StoreError> {
        let server = server.to_owned();
        self.query(move |connection| {
            let query = "SELECT tool, accepted FROM pins WHERE server = ?1 ORDER BY tool";
            let mut statement = connection.prepare_cached(query)?;
            let rows = statement.query_map([server], |row| {
                let accepted = serde_json::from_str(&row.get::<_, String>(1)?).unwrap_or_default();
                let key = row.get::<_, String>(0)?;
                let (kind, name) = parse_key(&key);
                Ok(Pin { kind, name: name.to_owned(), accepted })
            })?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
        .await
    }

    /// Accepts items of a server; pins of its other items remain.
    pub async fn set_pins(&self, server: &str, pins: Vec<Pin>) -> Result<(), StoreError> {
        let server = server.to_owned();
        self.query(move |connection| {
            durable_transaction(connection, |transaction| {
                let mut statement = transaction
                    .prepare_cached("INSERT OR REPLACE INTO pins (server, tool, accepted) VALUES (?1, ?2, ?3)")?;
                for Pin { kind, name, accepted } in pins {
                    statement.execute(params![server, key(kind, &name), accepted.to_string()])?;
                }
                Ok(())
            })
        })
        .await
    }

    /// Accepts these items of a server and deletes the pins of all others.
    pub async fn replace_pins(&self, server: &str, pins: Vec<Pin>) -> Result<(), StoreError> {
        let server = server.to_owned();
        self.query(move |connection| {
            durable_transaction(connection, |transaction| {
                transaction.execute("DELETE FROM pins WHERE server = ?1", params![server])?;
                let mut statement =
                    transaction.prepare_cached("INSERT INTO pins (server, tool, accepted) VALUES (?1, ?2, ?3)")?;
                for Pin { kind, name, accepted } in pins {
                    statement.execute(params![server, key(kind, &name), accepted.to_string()])?;
                }
                Ok(())
            })
        })
        .await
    }

    /// Deletes all pins of a server.
    pub async fn remove_pins(&self, server: &str) -> Result<(), StoreError> {
        self.replace_pins(server, Vec::new()).await
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::OnConflict;
    use ringfence_entries::entry_from_json;

    fn pin(name: &str, description: &str) -> Pin {
        Pin { kind: PinKind::Tool, name: name.into(), accepted: json!({"description": description}) }
    }

    #[test]
    fn every_key_has_one_meaning() {
        assert_eq!(key(PinKind::Tool, "a"), "a");
        for kind in [PinKind::Tool].into_iter().chain(PinKind::OTHERS) {
            for name in ["", "a", "prompt", "\u{1f}prompt\u{1f}a", "a\u{1f}b"] {
                assert_eq!(parse_key(&key(kind, name)), (kind, name));
            }
        }
    }

    #[tokio::test]
    async fn pins_are_stored_by_server_kind_and_name() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("state")).unwrap();
        store.set_pins("one", vec![pin("b", "1"), pin("a", "1")]).await.unwrap();
        store.set_pins("other", vec![pin("a", "9")]).await.unwrap();
        store.set_pins("one", vec![pin("b", "2")]).await.unwrap();
        assert_eq!(store.pins("one").await.unwrap(), [pin("a", "1"), pin("b", "2")]);
        let prompt = Pin { kind: PinKind::Prompt, ..pin("b", "of a prompt") };
        store.set_pins("one", vec![prompt.clone()]).await.unwrap();
        assert_eq!(store.pins("one").await.unwrap(), [prompt.clone(), pin("a", "1"), pin("b", "2")]);
        store.replace_pins("one", vec![prompt.clone()]).await.unwrap();
        assert_eq!(store.pins("one").await.unwrap(), [prompt]);
        store.remove_pins("one").await.unwrap();
        assert_eq!(store.pins("one").await.unwrap(), []);
        assert_eq!(store.pins("other").await.unwrap(), [pin("a", "9")]);
    }

    #[tokio::test]
    async fn pins_are_deleted_with_their_server() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("state")).unwrap();
        let entry = entry_from_json("a", &json!({"command": "x"})).unwrap().0;
        let entry = store.add_server(entry, None, OnConflict::Refuse).await.unwrap();
        store.set_pins(&entry.uuid, vec![pin("a", "1")]).await.unwrap();
        store.remove_server("a").await.unwrap();
        assert_eq!(store.pins(&entry.uuid).await.unwrap(), []);
    }
}
