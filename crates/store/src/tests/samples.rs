//! Databases with something in them, and what a server makes of them after they were damaged.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::path::Path;
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use super::*;
use crate::salvage::table::{TABLES, Table};
use ringfence_entries::{ServerEntry, entry_from_json};

pub(super) const PAGE: usize = 4096;

/// All rows by table, as text.
pub(super) type Rows = BTreeMap<&'static str, BTreeSet<String>>;

pub(super) struct Sample {
    pub(super) database: Vec<u8>,
    pub(super) log: Vec<u8>,
    /// Of the log.
    pub(super) index: Vec<u8>,
    pub(super) rows: Rows,
    /// With what was deleted at the end.
    pub(super) ever: Rows,
}

/// What lies in a directory when a server starts there.
#[derive(Clone, Copy)]
pub(super) struct Found<'a> {
    pub(super) database: &'a [u8],
    pub(super) log: Option<&'a [u8]>,
    pub(super) index: Option<&'a [u8]>,
}

impl<'a> Found<'a> {
    pub(super) fn database(database: &'a [u8]) -> Self {
        Self { database, log: None, index: None }
    }

    pub(super) fn with_log(database: &'a [u8], log: &'a [u8]) -> Self {
        Self { database, log: Some(log), index: None }
    }

    pub(super) fn put(self, directory: &Path) {
        for (name, bytes) in [("", Some(self.database)), ("-wal", self.log), ("-shm", self.index)] {
            if let Some(bytes) = bytes {
                std::fs::write(directory.join(format!("ringfence.db{name}")), bytes).unwrap();
            }
        }
    }
}

/// What a server made of it.
pub(super) struct Recovered {
    pub(super) rows: Rows,
    /// What it said about damage, if it did.
    pub(super) told: Option<String>,
}

fn entry(name: &str) -> ServerEntry {
    let (entry, _) =
        entry_from_json(name, &serde_json::json!({"command": "true", "args": ["x".repeat(3000)]})).unwrap();
    entry
}

pub(super) async fn fill(store: &Store) {
    for number in 0..60 {
        let session = record(&format!("session-{number}"), number);
        store.upsert_session(session.clone()).await.unwrap();
        store.set_code_session(&session.id, "ci", "code").await.unwrap();
        store.grant(&session.id, &["a".into(), "b".into()]).await.unwrap();
        store.record(event("one"));
        // Some are longer than a page.
        let value = serde_json::json!("v".repeat(usize::try_from(number).unwrap() * 300)).to_string();
        store.save_memory("ci", &format!("key-{number}"), value, None).await.unwrap();
        store.save_tool("ci", Language::Python, &format!("tool_{number}"), "t = 1\n".repeat(200), "").await.unwrap();
    }
    for number in 0..8 {
        let name = format!("server-{number}");
        store.add_server(entry(&name), None, Taken::Refuse).await.unwrap();
        let pin = Pin { kind: PinKind::Tool, name: "tool".into(), accepted: serde_json::json!({"a": 1}) };
        store.set_pins(&name, vec![pin]).await.unwrap();
        store.set_catalogue(&name, &[serde_json::json!({"name": "tool"})]).await.unwrap();
    }
    for number in 0..700 {
        store.record(event(&format!("session-{number}")));
        if number % 500 == 0 {
            store.sessions().await.unwrap();
        }
    }
    store.sessions().await.unwrap();
}

/// A database as a server that ended, or one that was killed, leaves it.
pub(super) async fn sample(was_killed: bool) -> Sample {
    let (_parent, path) = directory();
    let store = Store::open(&path).unwrap();
    fill(&store).await;
    let file = path.join("ringfence.db");
    let ever = rows_of(&file);
    store.remove_session(&SessionId::from_caller("session-7")).await.unwrap();
    if !was_killed {
        store.close().await;
    }
    let beside = |end: &str| std::fs::read(path.join(format!("ringfence.db{end}"))).unwrap_or_default();
    let (database, log, index) = (beside(""), beside("-wal"), beside("-shm"));
    Sample { database, log, index, rows: rows_of(&file), ever }
}

pub(super) fn rows_of(file: &Path) -> Rows {
    let connection = rusqlite::Connection::open(file).unwrap();
    let dump = |table: &Table| {
        let mut select = connection.prepare(&format!("SELECT {} FROM {}", table.column_names(), table.name)).unwrap();
        let rows = select.query_map([], |row| {
            let values = (0..table.columns.len()).map(|place| row.get::<_, rusqlite::types::Value>(place));
            Ok(format!("{:?}", values.collect::<Result<Vec<_>, _>>()?))
        });
        (table.name, rows.unwrap().map(Result::unwrap).collect())
    };
    TABLES.iter().map(dump).collect()
}

/// Starts a server with these files, and gives what it then has. Whatever is broken is told and kept.
pub(super) async fn recovered(found: Found<'_>, how: &str) -> Recovered {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path();
    found.put(path);
    let (store, said) = listening(|| Store::open(path));
    let store = store.unwrap_or_else(|error| panic!("{how}: it does not start: {error:?}"));
    store.sessions().await.unwrap_or_else(|error| panic!("{how}: {error:?}"));
    store.servers().await.unwrap_or_else(|error| panic!("{how}: {error:?}"));
    store.recent_audit(None, 10_000).await.unwrap_or_else(|error| panic!("{how}: {error:?}"));
    store.upsert_session(record("new", 1)).await.unwrap_or_else(|error| panic!("{how}: {error:?}"));
    store.remove_session(&SessionId::from_caller("new")).await.unwrap();
    store.close().await;
    let told = said.into_iter().find(|said| said.contains("was broken"));
    let aside = path.join("ringfence.db.broken-1");
    assert_eq!(told.is_some(), aside.exists(), "{how}: a copy is kept if, and only if, it is told");
    if told.is_some() {
        assert_is_kept(path, found, how);
    }
    for file in std::fs::read_dir(path).unwrap() {
        let name = file.unwrap().file_name().into_string().unwrap();
        let is_left = [".salvage", ".new", ".ready", "broken-2"].iter().any(|end| name.contains(end));
        assert!(!is_left, "{how}: {name} is left");
    }
    Recovered { rows: rows_of(&path.join("ringfence.db")), told }
}

/// The first copy is what was found, byte for byte.
pub(super) fn assert_is_kept(directory: &Path, found: Found<'_>, how: &str) {
    let read = |end: &str| std::fs::read(directory.join(format!("ringfence.db.broken-1{end}"))).ok();
    assert!(read("").as_deref() == Some(found.database), "{how}: it is not kept as it was");
    let log = found.log.filter(|log| !log.is_empty());
    assert!(read("-wal").as_deref() == log, "{how}: its log is not kept as it was");
}

pub(super) fn assert_nothing_is_invented(found: &Rows, written: &Rows, how: &str) {
    for (table, rows) in found {
        let invented: Vec<_> = rows.difference(&written[table]).collect();
        assert!(invented.is_empty(), "{how}: {table} has what was never written: {:.500}", format!("{invented:?}"));
    }
}

/// The same noise every time.
pub(super) struct Noise(u64);

pub(super) fn noise() -> Noise {
    Noise(0x9e37_79b9_7f4a_7c15)
}

impl Noise {
    pub(super) fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 16).unwrap() % most
    }

    pub(super) fn fill(&mut self, bytes: &mut [u8]) {
        bytes.fill_with(|| u8::try_from(self.below(256)).unwrap());
    }
}

/// What is said to whoever looks on, while something is done in this thread.
pub(super) fn listening<T>(work: impl FnOnce() -> T) -> (T, Vec<String>) {
    let listener = Listener::default();
    let done = tracing::subscriber::with_default(listener.clone(), work);
    let said = std::mem::take(&mut *listener.0.lock().unwrap());
    (done, said)
}

#[derive(Clone, Default)]
struct Listener(Arc<Mutex<Vec<String>>>);

impl Visit for Listener {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            self.0.lock().unwrap().push(format!("{value:?}"));
        }
    }
}

impl Subscriber for Listener {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn event(&self, event: &Event<'_>) {
        event.record(&mut self.clone());
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}
