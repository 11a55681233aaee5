//! Databases that were cut, filled with noise or lost in part: the server starts, keeps what can be read and nothing that
//! was not written, says so, and keeps the broken one as it was.

use std::collections::BTreeSet;

use super::samples::{
    Found, Noise, PAGE, Rows, Sample, assert_nothing_is_invented, fill, noise, recovered, rows_of, sample,
};
use super::*;
use crate::migrations::MIGRATIONS;

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

#[tokio::test]
async fn one_page_of_noise_costs_nothing_but_what_was_on_it() {
    let (sample, mut noise) = (sample(false).await, noise());
    let owners = owners(&sample);
    assert!(owners.len() > 80, "{}", owners.len());
    for (page, owner) in owners.iter().enumerate().filter(|(page, _)| *page < 24 || page % 16 == 0) {
        let mut broken = sample.database.clone();
        noise.fill(&mut broken[page * PAGE..(page + 1) * PAGE]);
        let how = format!("page {} of {owner}", page + 1);
        let found = recovered(Found::database(&broken), &how).await;
        assert_eq!(found.told.is_some(), !owner.is_empty(), "{how}: {:?}", found.told);
        assert_nothing_is_invented(&found.rows, &sample.rows, &how);
        for (table, rows) in found.rows.iter().filter(|(table, _)| *table != owner) {
            assert_eq!(rows.len(), sample.rows[table].len(), "{how}: rows of {table} are lost");
        }
    }
}

#[tokio::test]
async fn a_row_that_no_server_has_written_keeps_none_from_starting() {
    let sample = sample(false).await;
    let parent = tempfile::tempdir().unwrap();
    let file = parent.path().join("db");
    std::fs::write(&file, &sample.database).unwrap();
    let connection = rusqlite::Connection::open(&file).unwrap();
    let changed =
        connection.execute("UPDATE sessions SET created = -1 WHERE rowid = (SELECT min(rowid) FROM sessions)", []);
    assert_eq!(changed.unwrap(), 1);
    connection.pragma_update(None, "journal_mode", "DELETE").unwrap();
    drop(connection);
    let found = recovered(Found::database(&std::fs::read(&file).unwrap()), "a row from before time").await;
    assert!(found.told.is_some());
    assert_eq!(found.rows["sessions"].len() + 1, sample.rows["sessions"].len());
}

#[tokio::test]
async fn a_database_that_was_cut_off_anywhere_keeps_what_is_left() {
    let sample = sample(false).await;
    let length = sample.database.len();
    let cuts = (0..length).step_by(PAGE * 13).flat_map(|cut| [cut, cut + 1, cut + PAGE / 2]);
    for cut in [0, 1, 15, 16, 99, 100, 101, length - PAGE, length - 1].into_iter().chain(cuts) {
        let how = format!("cut at {cut} of {length}");
        let found = recovered(Found::database(&sample.database[..cut.min(length - 1)]), &how).await;
        assert!(found.told.is_some(), "{how}");
        assert_nothing_is_invented(&found.rows, &sample.rows, &how);
    }
    let found = recovered(Found::database(&sample.database[..length - PAGE * 2]), "the end").await;
    assert!(found.rows["sessions"].len() > 50, "{} sessions", found.rows["sessions"].len());
}

/// Rows without their numbers: one that is damaged cannot be told from another, since `SQLite` keeps no sums of rows.
fn texts(rows: &Rows) -> Rows {
    let text = |row: &String| {
        let values = row.split(", ").filter(|value| !value.contains("Integer(") && !value.contains("Null"));
        values.collect::<Vec<_>>().join(", ")
    };
    rows.iter().map(|(table, rows)| (*table, rows.iter().map(text).collect())).collect()
}

/// Noise that is seen wherever it begins and ends: a few bytes of a text could become others that might have been written.
fn fill_visibly(noise: &mut Noise, bytes: &mut [u8]) {
    noise.fill(bytes);
    let last = bytes.len() - 1;
    for at in 0..4 {
        // Never in UTF-8.
        (bytes[at], bytes[last - at]) = (0xff, 0xff);
    }
}

#[tokio::test]
async fn noise_or_a_cut_anywhere_keeps_no_server_from_starting_and_is_told() {
    let (sample, mut noise) = (sample(false).await, noise());
    let written = texts(&sample.rows);
    for round in 0..60 {
        let mut broken = sample.database.clone();
        for _ in 0..=noise.below(4) {
            // Half of it in the first pages, where the most depends on it.
            let reach = if round % 2 == 0 { 2 * PAGE } else { broken.len() };
            let length = 16 + noise.below(200);
            let at = noise.below(reach).min(broken.len() - length);
            fill_visibly(&mut noise, &mut broken[at..at + length]);
        }
        if round % 10 == 9 {
            broken.truncate(noise.below(broken.len()));
        }
        let how = format!("round {round}");
        let found = recovered(Found::database(&broken), &how).await;
        let rows = texts(&found.rows);
        assert_nothing_is_invented(&rows, &written, &how);
        if found.told.is_none() {
            assert_eq!(rows, written, "{how}: something is lost without a word");
        }
    }
}

#[tokio::test]
async fn a_header_that_is_wrong_anywhere_costs_nothing() {
    let sample = sample(false).await;
    // Each byte means something else. The last of its format may become that of an older program; a format that could
    // be that of a newer program is refused instead of repaired (`newer`).
    let formats = [0, 1, 2].map(|format| (63, format));
    let inverted = (0..100).filter(|at| !(61..64).contains(at)).map(|at| (at, sample.database[at] ^ 0xff));
    for (at, byte) in inverted.chain(formats) {
        let mut broken = sample.database.clone();
        broken[at] = byte;
        let how = format!("byte {at} of the header is {}", broken[at]);
        let found = recovered(Found::database(&broken), &how).await;
        assert_eq!(found.rows, sample.rows, "{how}");
    }
}

#[tokio::test]
async fn a_row_that_its_index_does_not_lead_to_is_found_again() {
    let sample = sample(false).await;
    let index = owners(&sample).iter().position(|owner| owner == "sqlite_autoindex_memories_1").unwrap();
    let mut broken = sample.database.clone();
    let page = &mut broken[index * PAGE..(index + 1) * PAGE];
    let at = page.windows(6).position(|bytes| bytes == b"key-33").unwrap();
    page[at] = b'x';
    let found = recovered(Found::database(&broken), "an index").await;
    assert!(found.told.unwrap().contains("nothing is known to be lost"));
    assert_eq!(found.rows, sample.rows);
}

#[tokio::test]
async fn what_is_not_there_or_no_file_is_said() {
    let found = recovered(Found::database(&[]), "an empty file").await;
    assert!(found.rows.values().all(BTreeSet::is_empty));
    assert!(found.told.unwrap().contains("it is empty"));
    let parent = tempfile::tempdir().unwrap();
    std::fs::create_dir(parent.path().join("ringfence.db")).unwrap();
    let Err(error) = Store::open(parent.path()) else { panic!("it is a directory") };
    assert!(matches!(error, StoreError::File { .. }) && error.hints()[0].contains("ringfence.db"), "{error:?}");
}

/// A database of the first format, with so many rows, and as many deleted again, that a server of today has brought up
/// to date and filled: its later tables begin at other pages than those of a new one.
async fn migrated(rows: u64) -> Sample {
    let (_parent, path) = directory();
    std::fs::create_dir_all(&path).unwrap();
    let file = path.join("ringfence.db");
    let old = rusqlite::Connection::open(&file).unwrap();
    old.execute_batch(MIGRATIONS[0]).unwrap();
    old.pragma_update(None, "user_version", 1).unwrap();
    for number in 0..2 * rows {
        let insert = "INSERT INTO sessions VALUES (?1, 'old', 'python', 'small', ?2, ?3)";
        old.execute(insert, rusqlite::params![format!("old-{number:04}"), number, "a".repeat(200)]).unwrap();
        let insert = "INSERT INTO audit (time_ms, kind, outcome, detail) VALUES (?1, 'old', 'ok', '{}')";
        old.execute(insert, [number]).unwrap();
    }
    old.execute("DELETE FROM sessions WHERE created >= ?1", [rows]).unwrap();
    drop(old);
    let store = Store::open(&path).unwrap();
    fill(&store).await;
    store.close().await;
    let (database, rows) = (std::fs::read(&file).unwrap(), rows_of(&file));
    Sample { database, log: Vec::new(), index: Vec::new(), ever: rows.clone(), rows }
}

#[tokio::test]
async fn a_migrated_database_without_its_first_page_gets_no_rows_of_other_tables() {
    let mut noise = noise();
    for rows in [0, 1, 8, 9, 16, 24, 32, 48, 64, 100, 150, 300] {
        let sample = migrated(rows).await;
        let mut broken = sample.database.clone();
        noise.fill(&mut broken[..PAGE]);
        let how = format!("{rows} old rows");
        let found = recovered(Found::database(&broken), &how).await;
        assert!(found.told.is_some(), "{how}");
        assert_nothing_is_invented(&found.rows, &sample.rows, &how);
        for table in ["sessions", "audit"] {
            assert_eq!(found.rows[table], sample.rows[table], "{how}: {table} is where it always is");
        }
    }
}
