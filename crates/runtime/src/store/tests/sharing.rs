//! Several processes with one database.

use std::os::unix::fs::FileExt as _;

use super::samples::noise;
use super::*;

/// Fills a page of the database with noise, under whoever has it open.
async fn break_database(store: &Store, file: &Path) {
    let checkpoint = |connection: &mut rusqlite::Connection| {
        Ok(connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?)
    };
    store.with(checkpoint).await.unwrap();
    let mut page = [0; 4096];
    noise().fill(&mut page);
    std::fs::OpenOptions::new().write(true).open(file).unwrap().write_all_at(&page, 2 * 4096).unwrap();
}

#[tokio::test]
async fn a_broken_database_is_not_replaced_under_a_server_that_uses_it() {
    let (_parent, path) = directory();
    let file = path.join("ringfence.db");
    let store = Store::open(&path).unwrap();
    store.upsert_session(record("one", 1)).await.unwrap();
    break_database(&store, &file).await;
    let inode = std::fs::metadata(&file).unwrap().ino();
    let Err(error) = Store::open(&path) else { panic!("it is in use") };
    assert!(matches!(error, StoreError::BrokenInUse { .. }), "{error:?}");
    assert!(error.hints()[0].starts_with("stop the other servers"), "{error:?}");
    assert_eq!(std::fs::metadata(&file).unwrap().ino(), inode);
    assert!(!path.join("ringfence.db.broken-1").exists());
    drop(store);
    assert_eq!(Store::open(&path).unwrap().sessions().await.unwrap(), [record("one", 1)]);
    assert!(path.join("ringfence.db.broken-1").exists());
}

#[tokio::test]
async fn a_broken_database_is_replaced_when_the_other_is_done_soon() {
    let (_parent, path) = directory();
    let store = Store::open(&path).unwrap();
    store.upsert_session(record("one", 1)).await.unwrap();
    break_database(&store, &path.join("ringfence.db")).await;
    let other = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(200));
        drop(store);
    });
    assert_eq!(Store::open(&path).unwrap().sessions().await.unwrap(), [record("one", 1)]);
    other.join().unwrap();
}

const CHILD_DIRECTORY: &str = "RINGFENCE_TEST_VISITED_STORE";

/// Not a test of its own: opens and closes, as a command does.
#[test]
#[ignore = "the child of a_visit_takes_nothing_from_a_server_that_lives"]
fn child_that_visits() {
    let Some(path) = std::env::var_os(CHILD_DIRECTORY) else { return };
    drop(Store::open(&PathBuf::from(path)).unwrap());
}

#[tokio::test]
async fn a_visit_takes_nothing_from_a_server_that_lives() {
    let (_parent, path) = directory();
    let store = Store::open(&path).unwrap();
    store.upsert_session(record("one", 1)).await.unwrap();
    let log = path.join("ringfence.db-wal");
    let inode = std::fs::metadata(&log).unwrap().ino();
    let visit = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "store::tests::sharing::child_that_visits", "--ignored"])
        .env(CHILD_DIRECTORY, &path)
        .output()
        .unwrap();
    assert!(visit.status.success(), "{visit:?}");
    let now = std::fs::metadata(&log).map(|log| log.ino()).ok();
    assert_eq!(now, Some(inode), "the log of a server that lives was removed");
}
