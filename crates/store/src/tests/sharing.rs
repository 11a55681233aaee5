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

const CHILD_DIRECTORY: &str = "RINGFENCE_TEST_FOREIGN_STORE";

/// Not a test of its own: another program, which knows `SQLite` and nothing else.
#[test]
#[ignore = "the child of a_broken_database_is_not_replaced_under_another_program"]
fn child_that_reads() {
    let Some(path) = std::env::var_os(CHILD_DIRECTORY).map(PathBuf::from) else { return };
    let connection = rusqlite::Connection::open(path.join("ringfence.db")).unwrap();
    connection.query_row("SELECT count(*) FROM audit", [], |_| Ok(())).unwrap();
    writeln!(std::io::stdout(), "\nit is open").unwrap();
    std::io::stdin().lines().count();
}

#[tokio::test]
async fn a_broken_database_is_not_replaced_under_another_program() {
    let (_parent, path) = directory();
    let store = Store::open(&path).unwrap();
    store.upsert_session(record("one", 1)).await.unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "tests::sharing::child_that_reads", "--ignored", "--nocapture"])
        .env(CHILD_DIRECTORY, &path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "it is open"));
    break_database(&store, &path.join("ringfence.db")).await;
    store.close().await;
    assert!(matches!(Store::open(&path), Err(StoreError::BrokenInUse { .. })));
    drop(child.stdin.take());
    child.wait().unwrap();
    assert_eq!(Store::open(&path).unwrap().sessions().await.unwrap(), [record("one", 1)]);
}

/// Whoever opens the file beside the connection, and closes it, takes the locks of `SQLite` from the whole process. Then
/// others may remove the log of a server that lives, and with it all that it commits from then on.
#[tokio::test]
async fn a_server_keeps_the_locks_of_its_database() {
    let (_parent, path) = directory();
    let store = Store::open(&path).unwrap();
    let inode = format!(":{} ", std::fs::metadata(path.join("ringfence.db")).unwrap().ino());
    let process = format!(" {} ", std::process::id());
    let has_lock = || {
        let locks = std::fs::read_to_string("/proc/locks").unwrap();
        locks.lines().any(|lock| lock.contains("POSIX") && lock.contains(&process) && lock.contains(&inode))
    };
    assert!(has_lock(), "it has none at all");
    let second = Store::open(&path).unwrap();
    assert!(has_lock(), "a second one in the same process took it");
    second.close().await;
    store.upsert_session(record("one", 1)).await.unwrap();
    assert!(has_lock(), "the end of the second took it");
    store.close().await;
    assert!(!has_lock());
}
