//! Databases that were damaged in any way: the server starts, restores the newest usable backup, preserves the
//! damaged files unchanged, and reports it.

use std::os::unix::fs::FileExt as _;

use super::*;
use crate::backup::{Backups, Cancellation};
use crate::migrations::MIGRATIONS;

const PAGE: usize = 4096;

pub(super) fn create_backup(path: &Path) {
    Backups::new(&path.join("ringfence.db")).create(&Cancellation::after(Duration::from_secs(60))).unwrap();
}

/// Fills a store, makes a backup, and changes the store again, as a server does that is then killed: its log and the
/// index of it remain. Returns the rows in the backup.
pub(super) async fn store_with_backup(path: &Path) -> Rows {
    let (_parent, source) = directory();
    let store = open_without_backups(&source);
    for number in 0..60_u64 {
        store.upsert_session(record(&format!("session-{number}"), number)).await.unwrap();
        store.record(event("one"));
        // Some are longer than a page.
        let value = format!("\"{}\"", "v".repeat(usize::try_from(number).unwrap() * 300));
        store.save_memory("ci", &format!("key-{number}"), value, None).await.unwrap();
    }
    create_backup(&source);
    let backup = rows(&source.join("ringfence.db.backup-1"));
    assert_eq!((backup["sessions"].len(), backup["memories"].len()), (60, 60));
    for number in 0..20 {
        store.upsert_session(record(&format!("later-{number}"), 100)).await.unwrap();
    }
    std::fs::create_dir_all(path).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700)).unwrap();
    for suffix in ["", "-wal", "-shm", ".backup-1"] {
        let name = format!("ringfence.db{suffix}");
        std::fs::copy(source.join(&name), path.join(&name)).unwrap();
    }
    backup
}

/// The bytes of a damaged database.
pub(super) struct Damaged(Vec<(&'static str, Vec<u8>)>);

impl Damaged {
    fn read(path: &Path) -> Self {
        let read = |suffix| Some((suffix, std::fs::read(path.join(format!("ringfence.db{suffix}"))).ok()?));
        Self(["", "-wal", "-shm"].into_iter().filter_map(read).collect())
    }

    /// The damaged files have other names and the same content. The index is written anew by every process that reads
    /// the log, and contains nothing that is not in it.
    pub(super) fn assert_is_at(&self, path: &Path) {
        for (suffix, bytes) in &self.0 {
            let found = std::fs::read(crate::directory::with_suffix(path, suffix)).ok();
            assert!(found.is_some() && (*suffix == "-shm" || found.as_ref() == Some(bytes)), "{suffix:?} is changed");
        }
    }
}

/// Damages the database and its log beyond repair.
pub(super) fn damage(path: &Path) -> Damaged {
    let file = std::fs::OpenOptions::new().write(true).open(path.join("ringfence.db")).unwrap();
    file.write_all_at(&[0x5a; PAGE], 0).unwrap();
    let log = std::fs::OpenOptions::new().write(true).open(path.join("ringfence.db-wal")).unwrap();
    log.write_all_at(&[0x5a; 32], 0).unwrap();
    Damaged::read(path)
}

/// A store that was closed, its bytes, and the rows of its backup.
async fn closed_store() -> (tempfile::TempDir, PathBuf, Vec<u8>, Rows) {
    let (parent, path) = directory();
    let backup = store_with_backup(&path).await;
    open_without_backups(&path).close().await;
    let bytes = std::fs::read(path.join("ringfence.db")).unwrap();
    (parent, path, bytes, backup)
}

/// Opens a store and returns its rows, without the event of a recovery, and the report of it.
async fn recovered(path: &Path, how: &str) -> (Rows, Option<DamageReport>) {
    let before = damage_reports(path);
    let store = Store::open(path).unwrap_or_else(|error| panic!("{how}: it does not start: {error:?}"));
    let failed = |error| panic!("{how}: {error:?}");
    store.sessions().await.map_or_else(&failed, drop);
    store.memories("ci").await.map_or_else(&failed, drop);
    store.server_changes().await.map_or_else(&failed, drop);
    store.upsert_session(record("new", 1)).await.unwrap_or_else(&failed);
    store.remove_session(&SessionId::from_caller("new")).await.unwrap();
    store.close().await;
    let mut rows = rows(&path.join("ringfence.db"));
    rows.get_mut("audit").unwrap().retain(|event| !event.contains("database_restored"));
    let mut reports = damage_reports(path);
    reports.retain(|report| !before.contains(report));
    assert!(reports.len() <= 1, "{how}: {reports:?}");
    (rows, reports.pop())
}

#[tokio::test]
async fn damaged_database_is_replaced_by_the_newest_backup() {
    let (_parent, path, bytes, backup) = closed_store().await;
    let mut noise = bytes.clone();
    noise[PAGE..].fill(0x5a);
    let text = b"this is not a database at all, but some text".to_vec();
    let (half, nearly_all) = (&bytes[..PAGE * 5 + 7], &bytes[..bytes.len() - 100]);
    for (how, content) in
        [("noise", &noise[..]), ("text", &text), ("empty", b""), ("half", half), ("nearly all", nearly_all)]
    {
        std::fs::write(path.join("ringfence.db"), content).unwrap();
        let (rows, report) = recovered(&path, how).await;
        assert_eq!(rows, backup, "{how}");
        let report = report.unwrap_or_else(|| panic!("{how}: it is not reported"));
        assert_eq!(report.restored.as_ref().unwrap().file, "ringfence.db.backup-1", "{how}");
        assert_eq!(std::fs::read(report.damaged_file()).unwrap(), content, "{how}: the damaged file is changed");
        let mode = std::fs::metadata(path.join("ringfence.db")).unwrap().mode();
        assert_eq!(mode & 0o777, 0o600, "{how}");
    }
    std::fs::remove_file(path.join("ringfence.db")).unwrap();
    let (rows, report) = recovered(&path, "missing").await;
    assert_eq!((rows, report.unwrap().reason.as_str()), (backup, "the file is empty or missing"));
}

#[tokio::test]
async fn log_and_index_are_preserved_with_the_damaged_database() {
    let (_parent, path) = directory();
    let backup = store_with_backup(&path).await;
    let damaged = damage(&path);
    assert_eq!(damaged.0.len(), 3);
    let (rows, report) = recovered(&path, "killed").await;
    assert_eq!(rows, backup);
    damaged.assert_is_at(&report.unwrap().damaged_file());
}

#[tokio::test]
async fn recovery_is_audited() {
    let (_parent, path, _, _) = closed_store().await;
    std::fs::write(path.join("ringfence.db"), "this is not a database".repeat(50)).unwrap();
    let store = Store::open(&path).unwrap();
    let event = &store.recent_audit(None, 1).await.unwrap()[0];
    assert_eq!((event.kind.as_str(), event.outcome.as_str()), ("database_restored", "backup"));
    assert_eq!(event.detail["reason"], "file is not a database");
    assert!(event.detail["damaged"].as_str().unwrap().starts_with("ringfence.db.damaged-"), "{event:?}");
    assert!(event.detail["backup_time"].as_str().unwrap().ends_with(" UTC"), "{event:?}");
}

#[tokio::test]
async fn damaged_backups_are_skipped() {
    let (_parent, path, bytes, backup) = closed_store().await;
    create_backup(&path);
    let file = path.join("ringfence.db");
    let newest = path.join("ringfence.db.backup-1");
    let newest_bytes = std::fs::read(&newest).unwrap();
    let mut noise = newest_bytes.clone();
    noise[PAGE * 3..PAGE * 9].fill(0x5a);
    for content in [b"text" as &[u8], b"", &noise, &newest_bytes[..newest_bytes.len() - 100]] {
        std::fs::write(&newest, content).unwrap();
        std::fs::write(&file, "text").unwrap();
        let (rows, report) = recovered(&path, "newest backup damaged").await;
        assert_eq!(rows, backup);
        let report = report.unwrap();
        assert_eq!(report.restored.unwrap().file, "ringfence.db.backup-2");
        assert!(report.unusable_backups[0].starts_with("ringfence.db.backup-1: "), "{:?}", report.unusable_backups);
    }
    std::fs::write(path.join("ringfence.db.backup-2"), &bytes[..bytes.len() / 2]).unwrap();
    std::fs::write(&file, "text").unwrap();
    let (rows, report) = recovered(&path, "all backups damaged").await;
    assert!(rows["sessions"].is_empty() && rows["memories"].is_empty(), "{rows:?}");
    let report = report.unwrap();
    assert_eq!((report.restored, report.unusable_backups.len()), (None, 2));
}

#[tokio::test]
async fn new_database_is_not_reported() {
    for content in [None, Some("")] {
        let (_parent, path) = directory();
        if let Some(content) = content {
            drop(open_without_backups(&path));
            std::fs::write(path.join("ringfence.db"), content).unwrap();
        }
        assert_eq!(recovered(&path, "new").await.1, None);
    }
}

/// The same pseudo-random numbers in every run.
struct Noise(u64);

impl Noise {
    fn below(&mut self, max: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 16).unwrap() % max
    }
}

#[tokio::test]
async fn noise_anywhere_never_prevents_a_start() {
    let (_parent, path, bytes, backup) = closed_store().await;
    let (mut noise, mut restored) = (Noise(0x9e37_79b9_7f4a_7c15), 0);
    for round in 0..100 {
        let mut damaged = bytes.clone();
        for _ in 0..=noise.below(4) {
            // Half of it in the first pages, on which everything else depends.
            let range = if round % 2 == 0 { 2 * PAGE } else { damaged.len() };
            let length = 16 + noise.below(3 * PAGE);
            let at = noise.below(range).min(damaged.len() - length);
            damaged[at..at + length].fill_with(|| u8::try_from(noise.below(256)).unwrap());
            // A format of a newer version would be refused.
            damaged[60] = 0;
        }
        if round % 10 == 9 {
            damaged.truncate(noise.below(damaged.len()));
        }
        std::fs::write(path.join("ringfence.db"), &damaged).unwrap();
        let (rows, report) = recovered(&path, &format!("round {round}")).await;
        if let Some(report) = report {
            restored += 1;
            assert_eq!(rows, backup, "round {round}");
            assert!(std::fs::read(report.damaged_file()).unwrap() == damaged, "round {round}");
            std::fs::remove_file(report.damaged_file()).unwrap();
        }
    }
    assert!(restored > 90, "{restored} of 100 were found to be damaged");
}

#[tokio::test]
async fn wrong_byte_in_the_header_never_prevents_a_start() {
    let (_parent, path, bytes, backup) = closed_store().await;
    let current = rows(&path.join("ringfence.db"));
    // The last byte of the format may become that of an older version. One that could be that of a newer version is
    // refused (`newer`).
    let formats = [0, 1, 2, 3].map(|format| (63, format));
    let inverted = (0..100).filter(|at| !(61..64).contains(at)).map(|at| (at, bytes[at] ^ 0xff));
    for (at, byte) in inverted.chain(formats) {
        let mut damaged = bytes.clone();
        damaged[at] = byte;
        std::fs::write(path.join("ringfence.db"), &damaged).unwrap();
        let how = format!("byte {at} of the header is {byte}");
        let (rows, report) = recovered(&path, &how).await;
        assert_eq!(rows, if report.is_some() { backup.clone() } else { current.clone() }, "{how}");
        // A database with a wrong format is backed up before its migration fails.
        let _ = std::fs::rename(path.join("ringfence.db.backup-2"), path.join("ringfence.db.backup-1"));
    }
}

#[tokio::test]
async fn database_that_is_not_a_file_is_refused() {
    let parent = tempfile::tempdir().unwrap();
    std::fs::create_dir(parent.path().join("ringfence.db")).unwrap();
    let Err(error) = Store::open(parent.path()) else { panic!("a directory was accepted") };
    assert!(matches!(error, StoreError::File { .. }) && error.hints()[0].contains("ringfence.db"), "{error:?}");
}

/// Positions of the pages of a table or an index in the file.
fn pages_of(database: &Path, name: &str) -> Vec<u64> {
    let directory = tempfile::tempdir().unwrap();
    let copy = directory.path().join("copy");
    std::fs::copy(database, &copy).unwrap();
    let connection = Connection::open(copy).unwrap();
    let mut pages = connection.prepare("SELECT pageno FROM dbstat WHERE name = ?1").unwrap();
    pages.query_map([name], |row| row.get::<_, u64>(0)).unwrap().map(|page| (page.unwrap() - 1) * PAGE as u64).collect()
}

/// Fills the pages of a table with noise, without a trace in the metadata of the file.
fn damage_silently(path: &Path, table: &str) {
    let database = path.join("ringfence.db");
    let pages = pages_of(&database, table);
    let file = std::fs::OpenOptions::new().write(true).open(&database).unwrap();
    let modified = file.metadata().unwrap().modified().unwrap();
    for page in pages {
        file.write_all_at(&[0x5a; 64], page).unwrap();
    }
    file.set_modified(modified).unwrap();
}

#[tokio::test]
async fn index_that_does_not_match_its_table_is_damage() {
    let (_parent, path, mut bytes, backup) = closed_store().await;
    let database = path.join("ringfence.db");
    let pages = pages_of(&database, "sqlite_autoindex_memories_1");
    let start = usize::try_from(pages[0]).unwrap();
    let key = bytes[start..start + PAGE].windows(6).position(|bytes| bytes == b"key-33").unwrap();
    bytes[start + key] = b'x';
    std::fs::write(&database, bytes).unwrap();
    let (rows, report) = recovered(&path, "index").await;
    assert!(report.is_some());
    assert_eq!(rows, backup);
}

#[tokio::test]
async fn log_whose_database_is_gone_is_preserved() {
    let (_parent, path) = directory();
    store_with_backup(&path).await;
    std::fs::remove_file(path.join("ringfence.db.backup-1")).unwrap();
    let log = std::fs::read(path.join("ringfence.db-wal")).unwrap();
    std::fs::remove_file(path.join("ringfence.db")).unwrap();
    let report = recovered(&path, "only a log").await.1.unwrap();
    assert!(report.reason.contains("write-ahead log") && report.restored.is_none(), "{report:?}");
    let preserved = crate::directory::with_suffix(&report.damaged_file(), "-wal");
    assert!(std::fs::read(preserved).unwrap() == log);
}

#[tokio::test]
async fn only_a_database_that_was_closed_cleanly_is_not_checked() {
    let (_parent, path, _, backup) = closed_store().await;
    damage_silently(&path, "memories");
    drop(Store::open(&path).unwrap());
    assert_eq!(damage_reports(&path), [], "it is not read");
    std::fs::remove_file(path.join("ringfence.db.shutdown")).unwrap();
    let (rows, report) = recovered(&path, "no marker").await;
    assert!(report.is_some());
    assert_eq!(rows, backup);
}

#[tokio::test]
async fn damage_that_is_found_in_use_is_repaired_at_the_next_start() {
    let (_parent, path, _, backup) = closed_store().await;
    damage_silently(&path, "memories");
    let store = Store::open(&path).unwrap();
    let error = store.memories("ci").await.unwrap_err();
    assert!(matches!(error, StoreError::Damaged { .. }), "{error:?}");
    assert!(error.hints()[0].contains("start again"), "{error:?}");
    store.close().await;
    assert_eq!(damage_reports(&path), []);
    let (rows, report) = recovered(&path, "found in use").await;
    assert!(report.is_some());
    assert_eq!(rows, backup);
}

#[tokio::test]
async fn backups_find_damage() {
    let (_parent, path, _, backup) = closed_store().await;
    damage_silently(&path, "memories");
    let store = backups::open_with_frequent_backups(&path);
    backups::wait_for("a mark for the next start", || {
        std::fs::read_to_string(path.join("ringfence.db.shutdown")).is_ok_and(|text| text.contains("damage"))
    });
    drop(store);
    let (rows, report) = recovered(&path, "found by a backup").await;
    assert!(report.is_some());
    assert_eq!(rows, backup);
}

/// Creates a database of the first format.
fn create_old_database(path: &Path) {
    std::fs::create_dir_all(path).unwrap();
    let old = Connection::open(path.join("ringfence.db")).unwrap();
    old.execute_batch(MIGRATIONS[0]).unwrap();
    old.pragma_update(None, "user_version", 1).unwrap();
    old.execute("INSERT INTO sessions VALUES ('old', 'ci', 'python', 'small', 1, 'x')", []).unwrap();
}

#[tokio::test]
async fn database_is_checked_before_a_migration() {
    let (_parent, path) = directory();
    create_old_database(&path);
    damage_silently(&path, "sessions");
    crate::shutdown_marker::record_clean(&path.join("ringfence.db")).unwrap();
    assert!(recovered(&path, "old and damaged").await.1.is_some());
}

#[tokio::test]
async fn backup_of_an_older_format_is_migrated() {
    let (_parent, path) = directory();
    create_old_database(&path);
    Store::open(&path).unwrap().close().await;
    let format = |file: &str| -> usize {
        let connection = Connection::open(path.join(file)).unwrap();
        connection.query_row("PRAGMA user_version", [], |row| row.get(0)).unwrap()
    };
    assert_eq!((format("ringfence.db"), format("ringfence.db.backup-1")), (MIGRATIONS.len(), 1));
    std::fs::write(path.join("ringfence.db"), "text").unwrap();
    let (rows, report) = recovered(&path, "old backup").await;
    assert_eq!((rows["sessions"].len(), report.unwrap().restored.is_some()), (1, true));
    assert_eq!(format("ringfence.db"), MIGRATIONS.len());
}
