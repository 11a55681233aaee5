//! The store as servers use it, with real files, disks and kills.

mod backups;
mod full_disk;
mod kills;
mod newer;
mod recovery;
mod sharing;

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use ringfence_core::{AuditEvent, AuditKind, Language, Principal, SessionId};
use rusqlite::Connection;
use rusqlite::types::ValueRef;

use crate::backup::BackupSchedule;
use crate::store::Options;
use crate::*;

/// Creates a temporary directory, and returns a path in it that does not exist.
fn directory() -> (tempfile::TempDir, PathBuf) {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("state/ringfence");
    (parent, path)
}

fn record(name: &str, created: u64) -> SessionRecord {
    SessionRecord {
        id: SessionId::from_caller(name),
        principal: "ci".into(),
        template: "python".into(),
        flavor: "small".into(),
        created,
        address: "launcher.sock#7".into(),
    }
}

fn event(session: &str) -> AuditEvent {
    let event = AuditEvent::new(AuditKind::CallFinished, "ok").with("bytes_out", 5);
    event.by(&Principal::named("ci"), Some(&SessionId::from_caller(session)))
}

/// Opens a store that makes no backup.
fn open_without_backups(path: &Path) -> Store {
    let far = Duration::from_secs(1 << 30);
    let backups = BackupSchedule { poll_interval: far, min_age_at_close: far, ..BackupSchedule::default() };
    // Without any backup, one is due at every close.
    let backups = BackupSchedule { timeout_at_close: Duration::ZERO, ..backups };
    Store::open_with(path, Options { backups, ..Options::default() }).unwrap()
}

/// All rows by table, as text.
type Rows = BTreeMap<String, BTreeSet<String>>;

fn rows(database: &Path) -> Rows {
    let connection = Connection::open(database).unwrap();
    let mut tables = connection.prepare("SELECT name FROM sqlite_schema WHERE type = 'table'").unwrap();
    let tables: Vec<String> = tables.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
    let dump = |table: String| {
        let mut select = connection.prepare(&format!("SELECT * FROM {table}")).unwrap();
        let columns = select.column_count();
        let rows = select.query_map([], |row| {
            let text = |column| match row.get_ref(column).unwrap() {
                ValueRef::Text(text) => String::from_utf8_lossy(text).into_owned(),
                other => format!("{other:?}"),
            };
            Ok((0..columns).map(text).collect::<Vec<_>>().join(", "))
        });
        let rows = rows.unwrap().map(Result::unwrap).collect();
        (table, rows)
    };
    tables.into_iter().map(dump).collect()
}

/// Names of the files in a directory, sorted.
fn file_names(directory: &Path) -> Vec<String> {
    let files = std::fs::read_dir(directory).unwrap();
    let mut names: Vec<_> = files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// A command that runs an ignored test of this program in a separate process.
fn child(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--ignored", "--nocapture"]);
    command
}

#[tokio::test]
async fn sessions_and_events_survive_a_restart() {
    let (_parent, path) = directory();
    let store = Store::open(&path).unwrap();
    for (name, created) in [("second", 2), ("first", 1), ("gone", 3)] {
        store.upsert_session(record(name, created)).await.unwrap();
    }
    store.remove_session(&SessionId::from_caller("gone")).await.unwrap();
    store.record(event("first"));
    store.record(event("second"));
    store.close().await;
    assert!(matches!(store.sessions().await, Err(StoreError::Closed)));

    let store = Store::open(&path).unwrap();
    assert_eq!(store.sessions().await.unwrap(), [record("first", 1), record("second", 2)]);
    let all = store.recent_audit(None, 10).await.unwrap();
    assert_eq!(all.iter().map(|row| row.session.as_deref()).collect::<Vec<_>>(), [Some("second"), Some("first")]);
    let one = store.recent_audit(Some(&SessionId::from_caller("first")), 10).await.unwrap();
    assert_eq!(one, all[1..]);
    assert_eq!((one[0].kind.as_str(), &one[0].detail), ("call_finished", &serde_json::json!({"bytes_out": 5})));
}

#[tokio::test]
async fn several_servers_share_a_directory() {
    let (_parent, path) = directory();
    let stores: Vec<Store> = (0..4).map(|_| Store::open(&path).unwrap()).collect();
    let tasks = stores.iter().enumerate().map(|(server, store)| {
        let store = store.clone();
        tokio::spawn(async move {
            for number in 0..25 {
                store.upsert_session(record(&format!("{server}-{number}"), number)).await.unwrap();
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    assert_eq!(stores[0].sessions().await.unwrap().len(), 100);
}

#[tokio::test]
async fn state_directory_is_accessible_to_its_owner_only() {
    let (parent, path) = directory();
    Store::open(&path).unwrap().upsert_session(record("one", 1)).await.unwrap();
    let mode = |path: PathBuf| std::fs::metadata(path).unwrap().mode() & 0o777;
    assert_eq!(mode(path.clone()), 0o700);
    for file in std::fs::read_dir(&path).unwrap() {
        let file = file.unwrap().path();
        assert_eq!(mode(file.clone()), 0o600, "{}", file.display());
    }
    let open = parent.path().join("open");
    std::fs::create_dir(&open).unwrap();
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o770)).unwrap();
    let Err(error) = Store::open(&open) else { panic!("a directory that others may write was accepted") };
    assert!(matches!(error, StoreError::WritableByOthers { mode: 0o770, .. }), "{error}");
    assert!(error.hints()[0].starts_with("chmod 700"));
    std::fs::write(parent.path().join("file"), "").unwrap();
    assert!(matches!(Store::open(&parent.path().join("file")), Err(StoreError::Directory { .. })));
}

#[tokio::test]
async fn dropped_events_are_counted() {
    let (_parent, path) = directory();
    let store = Store::open_with(&path, Options { queue_capacity: 2, ..Options::default() }).unwrap();
    // The transaction of another process blocks the writer.
    let other = rusqlite::Connection::open(path.join("ringfence.db")).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    for _ in 0..1000 {
        store.record(event("one"));
    }
    other.execute_batch("COMMIT").unwrap();
    store.remove_session(&SessionId::from_caller("none")).await.unwrap();
    let rows = store.recent_audit(None, 2000).await.unwrap();
    let count = |row: &AuditRecord| row.detail["events"].as_u64().filter(|_| row.kind == "events_dropped");
    let dropped: u64 = rows.iter().filter_map(count).sum();
    let recorded = rows.iter().filter(|row| count(row).is_none()).count();
    assert!(dropped > 900, "{dropped}");
    assert_eq!(dropped + recorded as u64, 1000, "every event is recorded or counted");
}

#[tokio::test]
async fn audit_has_a_maximum_number_of_events() {
    let (_parent, path) = directory();
    let store = Store::open_with(&path, Options { max_audit_rows: 100, ..Options::default() }).unwrap();
    for _ in 0..5 {
        for _ in 0..500 {
            store.record(event("one"));
        }
        store.sessions().await.unwrap();
    }
    let rows = store.recent_audit(None, 5000).await.unwrap().len();
    assert!((100..1200).contains(&rows), "{rows}");
}

fn event_of(principal: &str, kind: AuditKind) -> AuditEvent {
    AuditEvent::new(kind, "ok").by(&Principal::named(principal), None)
}

async fn count_events(store: &Store, principal: &str, kind: AuditKind) -> usize {
    let filter = AuditFilter { principal: Some(principal.into()), ..AuditFilter::default() };
    let rows = store.audit_after(0, &filter, 1_000_000).await.unwrap();
    rows.iter().filter(|row| row.kind == kind.name()).count()
}

/// Waits until all recorded events are written.
async fn flush(store: &Store) {
    store.remove_session(&SessionId::from_caller("none")).await.unwrap();
}

#[tokio::test]
async fn flooding_principal_does_not_remove_the_events_of_others() {
    let (_parent, path) = directory();
    let store = Store::open_with(&path, Options { max_audit_rows: 1000, ..Options::default() }).unwrap();
    for _ in 0..100 {
        store.record(event_of("victim", AuditKind::CallFinished));
        store.record(AuditEvent::new(AuditKind::AuthenticationFailed, "no_token"));
    }
    store.record(event_of("flooder", AuditKind::SessionCreated));
    for _ in 0..20 {
        for _ in 0..1000 {
            store.record(event_of("flooder", AuditKind::FileRead));
        }
        flush(&store).await;
    }
    assert_eq!(count_events(&store, "victim", AuditKind::CallFinished).await, 100);
    assert_eq!(count_events(&store, "flooder", AuditKind::SessionCreated).await, 1, "its events of another kind");
    let all = store.audit_after(0, &AuditFilter::default(), 1_000_000).await.unwrap();
    assert_eq!(all.iter().filter(|row| row.principal.is_none()).count(), 100, "events of unknown callers");
    assert!((1000..5000).contains(&all.len()), "{} events", all.len());
    // The rest of the surplus is deleted with the next writes.
    for _ in 0..50 {
        store.record(event_of("flooder", AuditKind::FileRead));
        flush(&store).await;
    }
    let rows = store.recent_audit(None, 1_000_000).await.unwrap().len();
    assert!((1000..=1200).contains(&rows), "{rows} events");
    // The newest events of the flooder are retained.
    assert_eq!(store.recent_audit(None, 1).await.unwrap()[0].principal.as_deref(), Some("flooder"));
}

#[tokio::test]
async fn flood_of_the_queue_does_not_drop_the_events_of_others() {
    let (_parent, path) = directory();
    let store = Store::open_with(&path, Options { queue_capacity: 256, ..Options::default() }).unwrap();
    // The transaction of another process blocks the writer.
    let other = rusqlite::Connection::open(path.join("ringfence.db")).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    for _ in 0..10_000 {
        store.record(event_of("flooder", AuditKind::FileRead));
    }
    std::thread::sleep(Duration::from_millis(100));
    for _ in 0..10_000 {
        store.record(event_of("flooder", AuditKind::FileRead));
    }
    for _ in 0..10 {
        store.record(event_of("victim", AuditKind::CallFinished));
    }
    other.execute_batch("COMMIT").unwrap();
    flush(&store).await;
    assert_eq!(count_events(&store, "victim", AuditKind::CallFinished).await, 10);
}
