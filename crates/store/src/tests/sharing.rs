//! Several processes that use one database.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::FileExt as _;
use std::process::Stdio;

use super::backups::wait_for;
use super::recovery::create_backup;
use super::*;
use crate::locks::OpeningLock;

/// Opens a store with one session and a backup of it.
async fn open_with_backup(path: &Path) -> Store {
    let store = Store::open(path).unwrap();
    store.upsert_session(record("one", 1)).await.unwrap();
    create_backup(path);
    store
}

/// Opens a store that waits only shortly for other users of a damaged database.
fn open_with_short_timeout(path: &Path) -> Result<Store, StoreError> {
    Store::open_with(path, Options { exclusive_timeout: Duration::from_millis(100), ..Options::default() })
}

/// Damages the database while stores have it open.
async fn damage(store: &Store, file: &Path) {
    let checkpoint =
        |connection: &mut Connection| Ok(connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?);
    store.query(checkpoint).await.unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(file).unwrap();
    // The first pages: the schema, and the roots of the first tables.
    file.write_all_at(&[0x5a; 3 * 4096 - 100], 100).unwrap();
}

#[tokio::test]
async fn damaged_database_is_not_replaced_while_another_store_uses_it() {
    let (_parent, path) = directory();
    let file = path.join("ringfence.db");
    let store = open_with_backup(&path).await;
    damage(&store, &file).await;
    let inode = std::fs::metadata(&file).unwrap().ino();
    let Err(error) = open_with_short_timeout(&path) else { panic!("a damaged database was opened") };
    assert!(matches!(error, StoreError::Damaged { .. }), "{error:?}");
    assert!(error.hints()[0].starts_with("stop all servers"), "{error:?}");
    assert_eq!(std::fs::metadata(&file).unwrap().ino(), inode);
    assert_eq!(damage_reports(&path), []);
    drop(store);
    assert_eq!(Store::open(&path).unwrap().sessions().await.unwrap(), [record("one", 1)]);
    assert_eq!(damage_reports(&path).len(), 1);
}

#[tokio::test]
async fn damaged_database_is_replaced_when_the_other_store_closes_soon() {
    let (_parent, path) = directory();
    let store = open_with_backup(&path).await;
    damage(&store, &path.join("ringfence.db")).await;
    let directory = path.clone();
    let other = std::thread::spawn(move || {
        // Held by the store that is being opened. It soon finds the damage, and waits for the other store to close.
        wait_for("second store", || OpeningLock::try_acquire(&directory).unwrap().is_none());
        std::thread::sleep(Duration::from_millis(100));
        drop(store);
    });
    assert_eq!(Store::open(&path).unwrap().sessions().await.unwrap(), [record("one", 1)]);
    other.join().unwrap();
}

const CHILD_DIRECTORY: &str = "RINGFENCE_TEST_FOREIGN_STORE";

/// Runs in a child process: another program, which uses `SQLite` without the locks of the store.
#[test]
#[ignore = "child process of damaged_database_is_not_replaced_while_another_program_uses_it"]
fn child_that_reads() {
    let Some(path) = std::env::var_os(CHILD_DIRECTORY).map(PathBuf::from) else { return };
    let connection = rusqlite::Connection::open(path.join("ringfence.db")).unwrap();
    connection.query_row("SELECT count(*) FROM audit", [], |_| Ok(())).unwrap();
    writeln!(std::io::stdout(), "\nopened").unwrap();
    std::io::stdin().lines().count();
}

#[tokio::test]
async fn damaged_database_is_not_replaced_while_another_program_uses_it() {
    let (_parent, path) = directory();
    let store = open_with_backup(&path).await;
    let mut child = child("tests::sharing::child_that_reads")
        .env(CHILD_DIRECTORY, &path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "opened"));
    damage(&store, &path.join("ringfence.db")).await;
    store.close().await;
    assert!(matches!(open_with_short_timeout(&path), Err(StoreError::Damaged { .. })));
    drop(child.stdin.take());
    child.wait().unwrap();
    assert_eq!(Store::open(&path).unwrap().sessions().await.unwrap(), [record("one", 1)]);
}

/// Opening and closing the file beside the connection would drop the locks of `SQLite` in the whole process. Others could
/// then delete the log of a running server, and with it all its later commits.
#[tokio::test]
async fn store_never_loses_the_locks_of_its_database() {
    let (_parent, path) = directory();
    let store = Store::open(&path).unwrap();
    let inode = format!(":{} ", std::fs::metadata(path.join("ringfence.db")).unwrap().ino());
    let process = format!(" {} ", std::process::id());
    let has_lock = || {
        let locks = std::fs::read_to_string("/proc/locks").unwrap();
        locks.lines().any(|lock| lock.contains("POSIX") && lock.contains(&process) && lock.contains(&inode))
    };
    assert!(has_lock(), "there is no lock");
    create_backup(&path);
    assert!(has_lock(), "a backup dropped it");
    let second = Store::open(&path).unwrap();
    assert!(has_lock(), "opening a second store dropped it");
    second.close().await;
    store.upsert_session(record("one", 1)).await.unwrap();
    assert!(has_lock(), "closing the second store dropped it");
    store.close().await;
    assert!(!has_lock());
}
