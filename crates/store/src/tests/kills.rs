//! Processes that are killed while they write, while they make a backup, and while they recover.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::recovery::{damage, store_with_backup};
use super::*;
use crate::DefaultSessionOwner;
use crate::backup::{Backups, Cancellation};
use crate::crash_point::CRASH_AT;

const CHILD_DIRECTORY: &str = "RINGFENCE_TEST_STORE";

fn owner() -> DefaultSessionOwner {
    DefaultSessionOwner { principal: "ci".into(), profile: "code".into(), connection: "name:a".into() }
}

/// Runs in a child process: writes rows until it is killed, and prints each one that was acknowledged.
#[tokio::test]
#[ignore = "child process of acknowledged_writes_survive_a_kill"]
async fn child_that_writes() {
    let Some(path) = std::env::var_os(CHILD_DIRECTORY) else { return };
    let store = Store::open(&PathBuf::from(path)).unwrap();
    let before = store.sessions().await.unwrap().len() as u64;
    for number in before.. {
        store.record(event("one"));
        let session = record(&number.to_string(), number);
        let id = session.id.clone();
        store.upsert_session(session).await.unwrap();
        store.set_default_session(&id, owner()).await.unwrap();
        store.grant(&id, &[number.to_string()]).await.unwrap();
        store.save_memory("ci", "number", number.to_string(), None).await.unwrap();
        store.save_tool("ci", Language::Python, "number", number.to_string(), "").await.unwrap();
        writeln!(std::io::stdout(), "\nwritten {number}").unwrap();
    }
}

#[tokio::test]
async fn acknowledged_writes_survive_a_kill() {
    let (_parent, path) = directory();
    let (mut written, mut unacknowledged) = (0_u64, 0);
    // Another process opens and closes the same database all the time, as commands do.
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
        let mut child = child("tests::kills::child_that_writes");
        let mut child = child.env(CHILD_DIRECTORY, &path).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut acknowledged = |line: std::io::Result<String>| -> Option<u64> {
            let number: u64 = line.ok()?.strip_prefix("written ")?.parse().ok()?;
            assert_eq!(number, written, "each is printed once");
            written += 1;
            Some(number)
        };
        let before_kill = lines.by_ref().filter_map(&mut acknowledged).take(1 + round * 3).count();
        assert_eq!(before_kill, 1 + round * 3, "the child writes");
        child.kill().unwrap();
        child.wait().unwrap();
        lines.filter_map(&mut acknowledged).count();
        let store = Store::open(&path).unwrap();
        let found = store.sessions().await.unwrap();
        // The last one may have been committed and not yet printed.
        assert!(found.len() as u64 >= written, "{} of {written} sessions", found.len());
        assert!(found.iter().enumerate().all(|(number, row)| *row == record(&number.to_string(), number as u64)));
        let at_least = |text: String| assert!(text.parse::<u64>().unwrap() + 1 >= written, "{text} of {written}");
        at_least(store.load_memory("ci", "number").await.unwrap().unwrap().value);
        at_least(store.saved_tool("ci", Language::Python, "number", None).await.unwrap().unwrap().source);
        let default_sessions = store.default_sessions(owner()).await.unwrap();
        assert!(default_sessions.len() as u64 + unacknowledged >= written, "{} of {written}", default_sessions.len());
        let last = SessionId::from_caller((written - 1).to_string());
        assert_eq!(store.granted(&last).await.unwrap(), [(written - 1).to_string()]);
        unacknowledged += found.len() as u64 - written;
        written = found.len() as u64;
    }
    is_over.store(true, Ordering::Relaxed);
    assert!(visitor.join().unwrap() > 20);
    assert_eq!(damage_reports(&path), []);
}

/// Runs in a child process: makes one backup after another until it is killed.
#[tokio::test]
#[ignore = "child process of kill_during_a_backup_leaves_a_complete_backup"]
async fn child_that_makes_backups() {
    let Some(path) = std::env::var_os(CHILD_DIRECTORY).map(PathBuf::from) else { return };
    let store = open_without_backups(&path);
    for number in 0.. {
        store.save_memory("ci", "number", number.to_string(), None).await.unwrap();
        Backups::new(&path.join("ringfence.db")).create(&Cancellation::after(Duration::from_secs(60))).unwrap();
        writeln!(std::io::stdout(), "\nbacked up {number}").unwrap();
    }
}

/// The number in the newest backup, after all backups were found to be complete.
fn number_in_backup(path: &Path) -> u64 {
    let backups = Backups::new(&path.join("ringfence.db")).list();
    let number = |file: &Path| -> u64 {
        let connection = Connection::open(file).unwrap();
        crate::damage::quick_check(&connection).unwrap();
        let value = "SELECT value FROM memories WHERE key = 'number'";
        let number: String = connection.query_row(value, [], |row| row.get(0)).unwrap();
        number.parse().unwrap()
    };
    let numbers: Vec<u64> = backups.iter().map(|backup| number(&backup.path)).collect();
    numbers[0]
}

#[tokio::test]
async fn kill_during_a_backup_leaves_a_complete_backup() {
    let (_parent, path) = directory();
    let store = open_without_backups(&path);
    for number in 0..200 {
        store.save_memory("ci", &format!("large-{number}"), format!("\"{}\"", "x".repeat(5000)), None).await.unwrap();
    }
    store.close().await;
    for round in 0..15 {
        let mut child = child("tests::kills::child_that_makes_backups");
        let mut child = child.env(CHILD_DIRECTORY, &path).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let mut next = || lines.by_ref().find_map(|line| line.strip_prefix("backed up ")?.parse::<u64>().ok());
        let first = next().unwrap();
        std::thread::sleep(Duration::from_micros(1700 * round));
        child.kill().unwrap();
        child.wait().unwrap();
        let acknowledged = std::iter::from_fn(next).last().unwrap_or(first);
        assert!(number_in_backup(&path) >= acknowledged, "round {round}: {acknowledged}");
    }
    for step in ["backup written", "backups rotated"] {
        let before = number_in_backup(&path);
        let killed = child("tests::kills::child_that_makes_backups")
            .env(CHILD_DIRECTORY, &path)
            .env(CRASH_AT, step)
            .output()
            .unwrap();
        assert!(!killed.status.success() && !String::from_utf8_lossy(&killed.stdout).contains("backed up"), "{step}");
        assert_eq!(number_in_backup(&path), before, "{step}");
    }
    let store = Store::open(&path).unwrap();
    assert_eq!(store.memories("ci").await.unwrap().len(), 201);
    Backups::new(&path.join("ringfence.db")).create(&Cancellation::after(Duration::from_secs(60))).unwrap();
    assert_eq!(damage_reports(&path), []);
    assert!(!path.join("ringfence.db.backup-new").exists(), "the incomplete backup is not removed");
}

/// Runs in a child process: opens a damaged database.
#[test]
#[ignore = "child process of kill_during_recovery_loses_nothing"]
fn child_that_recovers() {
    let Some(path) = std::env::var_os(CHILD_DIRECTORY) else { return };
    drop(Store::open(&PathBuf::from(path)));
}

#[tokio::test]
async fn kill_during_recovery_loses_nothing() {
    const STEPS: [&str; 5] =
        ["replacement prepared", "report written", "log renamed", "database renamed", "replacement renamed"];
    let steps = STEPS.iter().map(|step| vec![*step]).chain([STEPS.to_vec()]);
    for steps in steps {
        let (_parent, path) = directory();
        let expected = store_with_backup(&path).await;
        let damaged = damage(&path);
        for step in &steps {
            let killed =
                child("tests::kills::child_that_recovers").env(CHILD_DIRECTORY, &path).env(CRASH_AT, step).output();
            let killed = killed.unwrap();
            assert!(!killed.status.success(), "{step}: {killed:?}");
        }
        Store::open(&path).unwrap().close().await;
        let mut found = rows(&path.join("ringfence.db"));
        // Of the recovery itself, exactly one.
        let events = found.get_mut("audit").unwrap();
        let before = events.len();
        events.retain(|event| !event.contains("database_restored"));
        assert_eq!(before - events.len(), 1, "killed at {steps:?}");
        assert_eq!(found, expected, "killed at {steps:?}");
        let [report] = &damage_reports(&path)[..] else { panic!("{:?}", damage_reports(&path)) };
        damaged.assert_is_at(&report.damaged_file());
        let name = report.damaged_file().file_name().unwrap().to_str().unwrap().to_owned();
        let mut names =
            ["db", "db.backup-1", "db.shutdown", "in-use", "lock"].map(|end| format!("ringfence.{end}")).to_vec();
        names.extend(["", "-shm", "-wal", ".report"].map(|end| format!("{name}{end}")));
        names.sort();
        assert_eq!(file_names(&path), names, "killed at {steps:?}");
    }
}
