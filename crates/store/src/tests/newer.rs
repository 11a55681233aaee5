//! Databases of a newer version are refused and not changed, even if they look damaged to this version.

use super::*;
use crate::migrations::MIGRATIONS;

/// The content of the files of the database.
fn files(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = std::fs::read_dir(path).unwrap().map(|file| file.unwrap());
    let named = files.map(|file| (file.file_name().into_string().unwrap(), file.path()));
    let named = named.filter(|(name, _)| name.starts_with("ringfence.db") && !name.ends_with("-shm"));
    named.map(|(name, path)| (name, std::fs::read(path).unwrap())).collect()
}

fn assert_refused(path: &Path, format: i64, how: &str) {
    let before = files(path);
    for _ in 0..2 {
        let Err(error) = Store::open(path) else { panic!("{how}: it was accepted") };
        assert!(matches!(error, StoreError::Newer { found, .. } if found == format), "{how}: {error}");
        let text = format!("{error} {}", error.hints().join(" "));
        for part in [&*format.to_string(), &*MIGRATIONS.len().to_string(), "newer ringfence", "unchanged"] {
            assert!(text.contains(part), "{how}: {text}");
        }
    }
    // An empty log contains nothing.
    let mut after = files(path);
    after.retain(|name, content| before.contains_key(name) || !content.is_empty());
    assert!(after == before, "{how}: files were changed: {:?} {:?}", before.keys(), after.keys());
}

fn next_format() -> i64 {
    i64::try_from(MIGRATIONS.len()).unwrap() + 1
}

fn database(change: impl FnOnce(&Connection)) -> (tempfile::TempDir, PathBuf) {
    let (parent, path) = directory();
    drop(Store::open(&path).unwrap());
    let connection = Connection::open(path.join("ringfence.db")).unwrap();
    change(&connection);
    drop(connection);
    (parent, path)
}

#[test]
fn newer_database_is_refused_unchanged() {
    for format in [next_format(), 99, 10_000, 10_001, 1 << 30] {
        let (_parent, path) = database(|connection| {
            connection.pragma_update(None, "user_version", format).unwrap();
        });
        assert_refused(&path, format, &format!("format {format} with our schema"));
        let (_parent, path) = database(|connection| {
            connection.execute_batch("CREATE TABLE something_newer (number INTEGER) STRICT; DROP TABLE pins").unwrap();
            connection.pragma_update(None, "user_version", format).unwrap();
        });
        assert_refused(&path, format, &format!("format {format} with another schema"));
    }
}

#[test]
fn newer_database_with_another_page_size_is_refused_unchanged() {
    let (_parent, path) = database(|connection| {
        connection.execute_batch("PRAGMA journal_mode = DELETE; PRAGMA page_size = 512; VACUUM").unwrap();
        connection.execute_batch("CREATE TABLE more (number INTEGER); PRAGMA user_version = 12").unwrap();
    });
    assert_refused(&path, 12, "small pages");
}

#[test]
fn newer_database_that_is_also_damaged_is_refused_unchanged() {
    let (_parent, path) = database(|connection| connection.pragma_update(None, "user_version", 7).unwrap());
    let file = path.join("ringfence.db");
    let mut content = std::fs::read(&file).unwrap();
    content[4096..].fill(0x5a);
    std::fs::write(&file, &content).unwrap();
    assert_refused(&path, 7, "noise");
    std::fs::write(&file, &content[..4096 * 3]).unwrap();
    assert_refused(&path, 7, "truncated");
}

/// A newer version that was killed leaves its format in the log only.
#[test]
fn newer_format_in_the_log_is_refused_unchanged() {
    let (_parent, path) = database(|_| {});
    let (_other_parent, copy) = directory();
    std::fs::create_dir_all(&copy).unwrap();
    let connection = Connection::open(path.join("ringfence.db")).unwrap();
    connection.pragma_update(None, "journal_mode", "wal").unwrap();
    connection.execute_batch("CREATE TABLE more (number INTEGER); PRAGMA user_version = 8").unwrap();
    for name in ["ringfence.db", "ringfence.db-wal"] {
        std::fs::copy(path.join(name), copy.join(name)).unwrap();
    }
    drop(connection);
    std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(0o700)).unwrap();
    assert_refused(&copy, 8, "in the log");
}

#[test]
fn newer_backup_is_not_replaced_by_an_older_one() {
    let (_parent, path) = database(|_| {});
    let file = path.join("ringfence.db");
    std::fs::copy(&file, path.join("ringfence.db.backup-2")).unwrap();
    let backup = path.join("ringfence.db.backup-1");
    std::fs::copy(&file, &backup).unwrap();
    Connection::open(&backup).unwrap().pragma_update(None, "user_version", next_format()).unwrap();
    std::fs::write(&file, "this is not a database").unwrap();
    assert_refused(&path, next_format(), "the backup");
}
