//! The times at which backups are made, and the backups that are retained.

use std::time::{Instant, SystemTime};

use super::*;
use crate::backup::{BackupError, Backups, Cancellation};
use crate::locks::BackupLock;

const TIMEOUT: Duration = Duration::from_secs(20);

pub(super) fn open_with_frequent_backups(path: &Path) -> Store {
    let moment = Duration::from_millis(5);
    let backups =
        BackupSchedule { interval: moment, poll_interval: moment, retry_delay: moment, ..BackupSchedule::default() };
    Store::open_with(path, Options { backups, ..Options::default() }).unwrap()
}

pub(super) fn wait_for(what: &str, is_there: impl Fn() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !is_there() {
        assert!(Instant::now() < deadline, "no {what} within {TIMEOUT:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn backups(path: &Path) -> Backups {
    Backups::new(&path.join("ringfence.db"))
}

fn sessions_in(file: &Path) -> usize {
    rows(file)["sessions"].len()
}

#[tokio::test]
async fn running_store_makes_backups_while_something_changes() {
    let (_parent, path) = directory();
    let store = open_with_frequent_backups(&path);
    let (newest, previous) = (path.join("ringfence.db.backup-1"), path.join("ringfence.db.backup-2"));
    for number in 1..=3 {
        store.upsert_session(record(&number.to_string(), 1)).await.unwrap();
        wait_for("backup of the change", || newest.exists() && sessions_in(&newest) == number);
    }
    assert!(sessions_in(&previous) >= 2);
    std::thread::sleep(Duration::from_millis(150));
    let inode = std::fs::metadata(&newest).unwrap().ino();
    std::thread::sleep(Duration::from_millis(150));
    assert_eq!(std::fs::metadata(&newest).unwrap().ino(), inode, "nothing has changed since");
}

#[tokio::test]
async fn backup_is_made_at_close_unless_there_is_a_recent_one() {
    let (_parent, path) = directory();
    let newest = path.join("ringfence.db.backup-1");
    Store::open(&path).unwrap().close().await;
    assert!(!newest.exists(), "nothing was written");
    let write = async |name: &str| {
        let store = Store::open(&path).unwrap();
        store.upsert_session(record(name, 1)).await.unwrap();
        store.close().await;
    };
    write("first").await;
    assert_eq!(sessions_in(&newest), 1);
    write("second").await;
    assert_eq!(sessions_in(&newest), 1, "it is recent");
    let set_time = |time: SystemTime| std::fs::File::open(&newest).unwrap().set_modified(time).unwrap();
    set_time(SystemTime::now() - Duration::from_secs(11 * 60));
    Store::open(&path).unwrap().close().await;
    assert_eq!(sessions_in(&newest), 1, "nothing was written");
    write("third").await;
    assert_eq!((sessions_in(&newest), sessions_in(&path.join("ringfence.db.backup-2"))), (3, 1));
    // The clock was set back.
    set_time(SystemTime::now() + Duration::from_secs(60 * 60));
    write("fourth").await;
    assert_eq!(sessions_in(&newest), 4);
    let modes = [&newest, &path.join("ringfence.db.backup-2"), &path.join("ringfence.db.shutdown")]
        .map(|file| std::fs::metadata(file).unwrap().mode() & 0o777);
    assert_eq!(modes, [0o600; 3]);
}

#[tokio::test]
async fn backup_and_writers_do_not_wait_for_each_other() {
    let (_parent, path) = directory();
    let store = open_without_backups(&path);
    store.upsert_session(record("committed", 1)).await.unwrap();
    let other = Connection::open(path.join("ringfence.db")).unwrap();
    other.execute_batch("BEGIN IMMEDIATE; DELETE FROM sessions").unwrap();
    backups(&path).create(&Cancellation::after(TIMEOUT)).unwrap();
    assert_eq!(sessions_in(&path.join("ringfence.db.backup-1")), 1, "it contains what is committed");
    other.execute_batch("ROLLBACK").unwrap();
    // As a backup that takes long.
    other.execute_batch("BEGIN").unwrap();
    other.query_row("SELECT count(*) FROM sessions", [], |_| Ok(())).unwrap();
    store.upsert_session(record("meanwhile", 2)).await.unwrap();
}

#[tokio::test]
async fn abandoned_backup_leaves_nothing_behind() {
    let (_parent, path) = directory();
    let store = open_without_backups(&path);
    for number in 0..500 {
        store.record(event(&number.to_string()));
    }
    flush(&store).await;
    let result = backups(&path).create(&Cancellation::after(Duration::ZERO));
    assert!(matches!(result, Err(BackupError::Interrupted)), "{result:?}");
    let lock = BackupLock::try_acquire(&path.join("ringfence.db")).unwrap();
    let result = backups(&path).create(&Cancellation::after(TIMEOUT));
    assert!(matches!(result, Err(BackupError::InProgress)), "{result:?}");
    drop(lock);
    let left: Vec<String> = file_names(&path).into_iter().filter(|name| name.contains("backup")).collect();
    assert_eq!(left, ["ringfence.db.backup-lock"]);
    backups(&path).create(&Cancellation::after(TIMEOUT)).unwrap();
}
