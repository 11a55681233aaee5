//! The store as servers use it, and as they leave it when they are killed.

pub(super) mod crashes;
mod damage;
mod full_disk;
mod log;
mod newer;
mod samples;
mod sharing;

use std::io::{BufRead, BufReader, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::*;
use ringfence_core::AuditKind;
use ringfence_core::Language;
use ringfence_core::Principal;

/// A directory whose child does not exist yet.
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

#[tokio::test]
async fn sessions_and_events_are_there_again_after_a_restart() {
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
async fn the_state_is_ours_alone() {
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
    let Err(error) = Store::open(&open) else { panic!("others may write it") };
    assert!(matches!(error, StoreError::WritableByOthers { mode: 0o770, .. }), "{error}");
    assert!(error.hints()[0].starts_with("chmod 700"));
    std::fs::write(parent.path().join("file"), "").unwrap();
    assert!(matches!(Store::open(&parent.path().join("file")), Err(StoreError::Directory { .. })));
}

#[tokio::test]
async fn a_broken_database_is_kept_aside() {
    let (_parent, path) = directory();
    Store::open(&path).unwrap().upsert_session(record("one", 1)).await.unwrap();
    let file = path.join("ringfence.db");
    let whole = std::fs::read(&file).unwrap();
    let mut torn = whole.clone();
    torn[4096..].fill(0x5a);
    for (number, broken) in [(1, b"this is no database at all, but some text".to_vec()), (2, torn)] {
        std::fs::write(&file, &broken).unwrap();
        let store = Store::open(&path).unwrap();
        assert_eq!(store.sessions().await.unwrap(), []);
        store.upsert_session(record("new", 1)).await.unwrap();
        drop(store);
        assert_eq!(std::fs::read(path.join(format!("ringfence.db.broken-{number}"))).unwrap(), broken);
        let losses = losses(&path);
        assert_eq!(losses.len(), number, "{losses:?}");
        assert!(losses[number - 1].affects("servers") && !losses[number - 1].is_unknown, "{losses:?}");
    }
    assert_eq!(Store::open(&path).unwrap().sessions().await.unwrap(), [record("new", 1)]);
}

#[tokio::test]
async fn events_that_do_not_fit_are_counted() {
    let (_parent, path) = directory();
    let store = Store::with_bounds(&path, 2, AUDIT_ROWS).unwrap();
    // Another server's transaction holds the writer up.
    let other = rusqlite::Connection::open(path.join("ringfence.db")).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    for _ in 0..1000 {
        store.record(event("one"));
    }
    other.execute_batch("COMMIT").unwrap();
    store.remove_session(&SessionId::from_caller("none")).await.unwrap();
    let rows = store.recent_audit(None, 2000).await.unwrap();
    let lost = |row: &AuditRecord| row.detail["events"].as_u64().filter(|_| row.kind == "events_dropped");
    let (lost, kept): (u64, usize) =
        (rows.iter().filter_map(lost).sum(), rows.iter().filter(|row| lost(row).is_none()).count());
    assert!(lost > 900, "{lost}");
    assert_eq!(lost + kept as u64, 1000, "every event is there or counted");
}

#[tokio::test]
async fn the_audit_does_not_grow_without_end() {
    let (_parent, path) = directory();
    let store = Store::with_bounds(&path, QUEUED, 100).unwrap();
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

async fn audited(store: &Store, principal: &str, kind: AuditKind) -> usize {
    let filter = AuditFilter { principal: Some(principal.into()), ..AuditFilter::default() };
    let rows = store.audit_after(0, &filter, 1_000_000).await.unwrap();
    rows.iter().filter(|row| row.kind == kind.name()).count()
}

/// Waits until what was recorded is written.
async fn flush(store: &Store) {
    store.remove_session(&SessionId::from_caller("none")).await.unwrap();
}

#[tokio::test]
async fn flooding_principal_does_not_remove_the_events_of_others() {
    let (_parent, path) = directory();
    let store = Store::with_bounds(&path, QUEUED, 1000).unwrap();
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
    assert_eq!(audited(&store, "victim", AuditKind::CallFinished).await, 100);
    assert_eq!(audited(&store, "flooder", AuditKind::SessionCreated).await, 1, "another kind of its own events");
    let all = store.audit_after(0, &AuditFilter::default(), 1_000_000).await.unwrap();
    assert_eq!(all.iter().filter(|row| row.principal.is_none()).count(), 100, "of unknown callers");
    assert!((1000..5000).contains(&all.len()), "{} events are kept", all.len());
    // What is left over is deleted with the next writes.
    for _ in 0..50 {
        store.record(event_of("flooder", AuditKind::FileRead));
        flush(&store).await;
    }
    let rows = store.recent_audit(None, 1_000_000).await.unwrap().len();
    assert!((1000..=1200).contains(&rows), "{rows} events are kept");
    // The newest of the flooder stay.
    assert_eq!(store.recent_audit(None, 1).await.unwrap()[0].principal.as_deref(), Some("flooder"));
}

#[tokio::test]
async fn flood_of_the_queue_does_not_drop_the_events_of_others() {
    let (_parent, path) = directory();
    let store = Store::with_bounds(&path, 256, AUDIT_ROWS).unwrap();
    // Another server's transaction holds the writer up.
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
    assert_eq!(audited(&store, "victim", AuditKind::CallFinished).await, 10);
}

const CHILD_DIRECTORY: &str = "RINGFENCE_TEST_STORE";

/// Not a test of its own: writes rows until it is killed, and says each that is written.
#[tokio::test]
#[ignore = "the child of nothing_written_is_lost_when_the_server_is_killed"]
async fn child_that_writes() {
    let Some(path) = std::env::var_os(CHILD_DIRECTORY) else { return };
    let store = Store::open(&PathBuf::from(path)).unwrap();
    let before = store.sessions().await.unwrap().len() as u64;
    for number in before.. {
        store.record(event("one"));
        let session = record(&number.to_string(), number);
        let id = session.id.clone();
        store.upsert_session(session).await.unwrap();
        store.set_code_session(&id, "ci", "code").await.unwrap();
        store.grant(&id, &[number.to_string()]).await.unwrap();
        store.save_memory("ci", "number", number.to_string(), None).await.unwrap();
        store.save_tool("ci", Language::Python, "number", number.to_string(), "").await.unwrap();
        writeln!(std::io::stdout(), "\nwritten {number}").unwrap();
    }
}

#[tokio::test]
async fn nothing_written_is_lost_when_the_server_is_killed() {
    let (_parent, path) = directory();
    let (mut written, mut untold) = (0_u64, 0);
    // Another process opens and closes the same all the while, as commands do.
    let is_over = Arc::new(AtomicBool::new(false));
    let visitor = std::thread::spawn({
        let (path, is_over) = (path.clone(), Arc::clone(&is_over));
        move || {
            let mut visits = 0;
            while !is_over.load(Ordering::Relaxed) {
                drop(Store::open(&path).unwrap());
                visits += 1;
            }
            visits
        }
    });
    for round in 0..20 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "tests::child_that_writes", "--ignored", "--nocapture"])
            .env(CHILD_DIRECTORY, &path)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut said = |line: std::io::Result<String>| -> Option<u64> {
            let number: u64 = line.ok()?.strip_prefix("written ")?.parse().ok()?;
            assert_eq!(number, written, "each is told once");
            written += 1;
            Some(number)
        };
        let before_kill = lines.by_ref().filter_map(&mut said).take(1 + round * 3).count();
        assert_eq!(before_kill, 1 + round * 3, "the child writes");
        child.kill().unwrap();
        child.wait().unwrap();
        lines.filter_map(&mut said).count();
        let store = Store::open(&path).unwrap();
        let found = store.sessions().await.unwrap();
        // The last may have been committed and not yet told.
        assert!(found.len() as u64 >= written, "{} of {written} are there", found.len());
        assert!(found.iter().enumerate().all(|(number, row)| *row == record(&number.to_string(), number as u64)));
        // What was told to be written has all that belongs to it; of one that was not told, anything may be missing.
        let at_least = |text: String| assert!(text.parse::<u64>().unwrap() + 1 >= written, "{text} of {written}");
        at_least(store.load_memory("ci", "number").await.unwrap().unwrap().value);
        at_least(store.saved_tool("ci", Language::Python, "number", None).await.unwrap().unwrap().source);
        let noted = store.code_sessions("ci", "code").await.unwrap();
        assert!(noted.len() as u64 + untold >= written, "{} of {written}", noted.len());
        let last = SessionId::from_caller((written - 1).to_string());
        assert_eq!(store.granted(&last).await.unwrap(), [(written - 1).to_string()]);
        untold += found.len() as u64 - written;
        written = found.len() as u64;
    }
    is_over.store(true, Ordering::Relaxed);
    assert!(visitor.join().unwrap() > 20);
    assert!(!path.join("ringfence.db.broken-1").exists());
}
