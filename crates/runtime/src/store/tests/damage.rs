//! Databases that were cut, filled with noise or lost in part: the server starts, keeps what can be read and nothing that
//! was not written, and keeps the broken one as it was.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::*;
use crate::servers::{ServerEntry, entry_from_json};
use crate::store::salvage::table::{TABLES, Table};

const PAGE: usize = 4096;

/// All rows by table, as text.
type Rows = BTreeMap<&'static str, BTreeSet<String>>;

struct Sample {
    database: Vec<u8>,
    log: Vec<u8>,
    rows: Rows,
}

fn entry(name: &str) -> ServerEntry {
    let (entry, _) =
        entry_from_json(name, &serde_json::json!({"command": "true", "args": ["x".repeat(3000)]})).unwrap();
    entry
}

async fn fill(store: &Store) {
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
        store.add_server(entry(&format!("server-{number}")), None, Taken::Refuse).await.unwrap();
    }
    for number in 0..700 {
        store.record(event(&format!("session-{number}")));
        if number % 500 == 0 {
            store.sessions().await.unwrap();
        }
    }
    store.remove_session(&SessionId::from_caller("session-7")).await.unwrap();
}

/// A database as a server that ended, or one that was killed, leaves it.
async fn sample(was_killed: bool) -> Sample {
    let (_parent, path) = directory();
    let store = Store::open(&path).unwrap();
    fill(&store).await;
    let file = path.join("ringfence.db");
    if !was_killed {
        store.close().await;
    }
    let rows = rows_of(&file);
    let log = std::fs::read(path.join("ringfence.db-wal")).unwrap_or_default();
    Sample { database: std::fs::read(file).unwrap(), log, rows }
}

fn rows_of(file: &Path) -> Rows {
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

/// Starts a server with these files, and gives what it then has. Whatever is broken is kept.
async fn recovered(database: &[u8], log: Option<&[u8]>, how: &str) -> Rows {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path();
    std::fs::write(path.join("ringfence.db"), database).unwrap();
    if let Some(log) = log {
        std::fs::write(path.join("ringfence.db-wal"), log).unwrap();
    }
    let store = Store::open(path).unwrap_or_else(|error| panic!("{how}: it does not start: {error:?}"));
    store.sessions().await.unwrap_or_else(|error| panic!("{how}: {error:?}"));
    store.servers().await.unwrap_or_else(|error| panic!("{how}: {error:?}"));
    store.recent_audit(None, 10_000).await.unwrap_or_else(|error| panic!("{how}: {error:?}"));
    store.upsert_session(record("new", 1)).await.unwrap_or_else(|error| panic!("{how}: {error:?}"));
    store.remove_session(&SessionId::from_caller("new")).await.unwrap();
    store.close().await;
    let aside = path.join("ringfence.db.broken-1");
    if aside.exists() {
        assert!(std::fs::read(&aside).unwrap() == database, "{how}: it is not kept as it was");
        let kept_log = std::fs::read(path.join("ringfence.db.broken-1-wal")).ok();
        let log = log.filter(|log| !log.is_empty());
        assert!(kept_log.as_deref() == log, "{how}: its log is not kept as it was");
    }
    for file in std::fs::read_dir(path).unwrap() {
        let name = file.unwrap().file_name().into_string().unwrap();
        assert!(!name.contains("salvage") && !name.contains(".new"), "{how}: {name} is left");
    }
    rows_of(&path.join("ringfence.db"))
}

fn assert_nothing_is_invented(found: &Rows, sample: &Sample, how: &str) {
    for (table, rows) in found {
        let invented: Vec<_> = rows.difference(&sample.rows[table]).collect();
        assert!(invented.is_empty(), "{how}: {table} has what was never written: {:.500}", format!("{invented:?}"));
    }
}

/// Which table each page belongs to, from one.
fn owners(sample: &Sample) -> Vec<String> {
    let parent = tempfile::tempdir().unwrap();
    let file = parent.path().join("db");
    std::fs::write(&file, &sample.database).unwrap();
    let connection = rusqlite::Connection::open(&file).unwrap();
    let mut owners = vec![String::new(); sample.database.len() / PAGE];
    let mut select = connection.prepare("SELECT pageno, name FROM dbstat").unwrap();
    let pages = select.query_map([], |row| Ok((row.get::<_, usize>(0)?, row.get::<_, String>(1)?))).unwrap();
    for page in pages {
        let (number, name) = page.unwrap();
        owners[number - 1] = name;
    }
    owners
}

/// The same noise every time.
struct Noise(u64);

fn noise() -> Noise {
    Noise(0x9e37_79b9_7f4a_7c15)
}

impl Noise {
    fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 16).unwrap() % most
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        bytes.fill_with(|| u8::try_from(self.below(256)).unwrap());
    }
}

#[tokio::test]
async fn one_page_of_noise_costs_nothing_but_what_was_on_it() {
    let (sample, mut noise) = (sample(false).await, noise());
    let owners = owners(&sample);
    assert!(owners.len() > 80, "{}", owners.len());
    for (page, owner) in owners.iter().enumerate().filter(|(page, _)| *page < 24 || page % 16 == 0) {
        let mut broken = sample.database.clone();
        noise.fill(&mut broken[page * PAGE..(page + 1) * PAGE]);
        let how = format!("page {} of {owner}", page + 1);
        let found = recovered(&broken, None, &how).await;
        assert_nothing_is_invented(&found, &sample, &how);
        for (table, rows) in found.iter().filter(|(table, _)| *table != owner) {
            assert_eq!(rows.len(), sample.rows[table].len(), "{how}: rows of {table} are lost");
        }
    }
}

#[tokio::test]
async fn a_database_that_was_cut_off_anywhere_keeps_what_is_left() {
    let sample = sample(false).await;
    let length = sample.database.len();
    let cuts = (0..length).step_by(PAGE * 13).flat_map(|cut| [cut, cut + 1, cut + PAGE / 2]);
    for cut in [0, 1, 15, 16, 99, 100, 101, length - PAGE, length - 1].into_iter().chain(cuts) {
        let how = format!("cut at {cut} of {length}");
        let found = recovered(&sample.database[..cut.min(length)], None, &how).await;
        assert_nothing_is_invented(&found, &sample, &how);
    }
    let found = recovered(&sample.database[..length - PAGE * 2], None, "the end").await;
    assert!(found["sessions"].len() > 50, "{} sessions", found["sessions"].len());
}

#[tokio::test]
async fn noise_anywhere_keeps_no_server_from_starting() {
    let (sample, mut noise) = (sample(false).await, noise());
    for round in 0..60 {
        let mut broken = sample.database.clone();
        for _ in 0..=noise.below(4) {
            // Half of it in the first pages, where the most depends on it.
            let reach = if round % 2 == 0 { 2 * PAGE } else { broken.len() };
            let at = noise.below(reach);
            let length = (1 + noise.below(200)).min(broken.len() - at);
            noise.fill(&mut broken[at..at + length]);
        }
        recovered(&broken, None, &format!("round {round}")).await;
    }
    // Every byte of the header alone: each means something else. With another last one of its format, it could be a newer
    // program's, and is left alone.
    for at in (0..100).filter(|at| *at != 63) {
        let mut broken = sample.database.clone();
        broken[at] ^= 0xff;
        let how = format!("byte {at} of the header is {}", broken[at]);
        let found = recovered(&broken, None, &how).await;
        assert_nothing_is_invented(&found, &sample, &how);
        assert_eq!(found["servers"].len(), 8, "{how}");
    }
}

#[tokio::test]
async fn a_log_that_is_cut_or_noise_takes_only_its_own() {
    let (sample, mut noise) = (sample(true).await, noise());
    let length = sample.log.len();
    assert!(length > 50 * PAGE, "{length}");
    for cut in [0, 1, 31, 32, 33, length / 3, length / 2, length - PAGE, length - 1, length] {
        let how = format!("the log cut at {cut} of {length}");
        let found = recovered(&sample.database, Some(&sample.log[..cut]), &how).await;
        if cut == length {
            assert_eq!(found, sample.rows, "{how}");
        }
    }
    for round in 0..20 {
        let mut log = sample.log.clone();
        let at = noise.below(length - PAGE);
        noise.fill(&mut log[at..at + PAGE]);
        recovered(&sample.database, Some(&log), &format!("noise in the log, round {round}")).await;
    }
}

#[tokio::test]
async fn a_log_whose_database_is_gone_is_not_thrown_away() {
    let (_parent, path) = directory();
    let store = Store::open(&path).unwrap();
    for number in 0..20 {
        store.upsert_session(record(&format!("session-{number}"), number)).await.unwrap();
    }
    let log = std::fs::read(path.join("ringfence.db-wal")).unwrap();
    let found = recovered(&[], Some(&log), "the database is empty").await;
    assert_eq!(found, rows_of(&path.join("ringfence.db")));
    assert_eq!(found["sessions"].len(), 20);
}

#[tokio::test]
async fn what_is_not_there_or_no_file_is_said() {
    assert!(recovered(&[], None, "an empty file").await.values().all(BTreeSet::is_empty));
    let parent = tempfile::tempdir().unwrap();
    std::fs::create_dir(parent.path().join("ringfence.db")).unwrap();
    let Err(error) = Store::open(parent.path()) else { panic!("it is a directory") };
    assert!(matches!(error, StoreError::File { .. }) && error.hints()[0].contains("ringfence.db"), "{error:?}");
}
