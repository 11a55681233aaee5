//! A full disk: it is reported to the writer, and everything works again when there is space.

use std::io::Write as _;

use super::*;
use crate::backup::{BackupError, Backups, Cancellation};

const CHILD_DISK: &str = "RINGFENCE_TEST_DISK";

/// Runs in a child process, in a mount namespace where the directory is a small disk.
#[tokio::test]
#[ignore = "child process of full_disk_is_reported_to_the_writer_and_survived"]
async fn child_on_a_small_disk() {
    let Some(disk) = std::env::var_os(CHILD_DISK).map(PathBuf::from) else { return };
    let store = Store::open(&disk.join("state")).unwrap();
    store.upsert_session(record("before", 1)).await.unwrap();
    std::fs::write(disk.join("ballast"), vec![0; 64 << 20]).unwrap_err();
    // A short row may still fit where a long one did not.
    let (mut errors, mut is_reported) = (Vec::new(), false);
    for number in 0..20_000_u64 {
        if let Err(error) = store.upsert_session(record(&format!("session-{number}"), 2)).await {
            errors.push(error);
            is_reported = store.check().await.is_err();
        }
        if is_reported {
            break;
        }
    }
    let error = errors.pop().expect("the disk is full");
    assert!(matches!(&error, StoreError::Write(why) if why.contains("full")), "{error:?}");
    assert!(error.hints()[0].contains("disk is not full"), "{error:?}");
    assert!(is_reported, "the check does not report it");
    assert_backup_fails(&disk.join("state"));
    let written = store.sessions().await.unwrap().len();
    std::fs::remove_file(disk.join("ballast")).unwrap();
    store.check().await.expect("a new write is tried");
    store.upsert_session(record("after", 3)).await.unwrap();
    store.close().await;
    let sessions = Store::open(&disk.join("state")).unwrap().sessions().await.unwrap();
    assert_eq!((sessions.len(), sessions[0].created, sessions[written].created), (written + 1, 1, 3));
    writeln!(std::io::stdout(), "\nall passed").unwrap();
}

/// A backup fails without using the space that is left.
fn assert_backup_fails(state: &Path) {
    let result = Backups::new(&state.join("ringfence.db")).create(&Cancellation::after(Duration::from_secs(60)));
    assert!(matches!(result, Err(BackupError::DiskSpace { .. })), "{result:?}");
    assert!(file_names(state).iter().all(|name| !name.contains(".backup-new")));
}

#[test]
fn full_disk_is_reported_to_the_writer_and_survived() {
    on_a_small_disk("tests::full_disk::child_on_a_small_disk");
}

fn on_a_small_disk(child: &str) {
    let disk = tempfile::tempdir().unwrap();
    let mount = "mount -t tmpfs -o size=4m none \"$RINGFENCE_TEST_DISK\" && exec \"$@\"";
    let output = Command::new("unshare")
        .args(["--map-root-user", "--mount", "sh", "-c", mount, "sh"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", child, "--ignored", "--nocapture"])
        .env(CHILD_DISK, disk.path())
        .output()
        .unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(stdout.contains("all passed"), "{stdout}\n{stderr}");
}

/// Runs in a child process, on a small disk: a damaged database, and no space for its replacement.
#[tokio::test]
#[ignore = "child process of damaged_database_is_left_unchanged_while_the_disk_is_full"]
async fn child_with_a_damaged_database() {
    let Some(disk) = std::env::var_os(CHILD_DISK).map(PathBuf::from) else { return };
    let (state, ballast) = (disk.join("state"), disk.join("ballast"));
    let store = Store::open(&state).unwrap();
    for number in 0..100 {
        store.save_memory("ci", &format!("key-{number}"), format!("\"{}\"", "x".repeat(2000)), None).await.unwrap();
    }
    store.close().await;
    let names = file_names(&state);
    assert!(names.contains(&"ringfence.db.backup-1".to_owned()), "{names:?}");
    let file = state.join("ringfence.db");
    let mut damaged = std::fs::read(&file).unwrap();
    damaged[..4096].fill(0x5a);
    std::fs::write(&file, &damaged).unwrap();
    // With no space at all, and with some, so that the recovery fails at every step.
    let (enough, mut failures) = (2 * damaged.len() + (256 << 10), 0);
    for free in (0..enough).step_by(16 << 10) {
        std::fs::write(&ballast, vec![0; 64 << 20]).unwrap_err();
        let ballast_bytes = std::fs::metadata(&ballast).unwrap().len();
        let file_of_ballast = std::fs::OpenOptions::new().write(true).open(&ballast).unwrap();
        file_of_ballast.set_len(ballast_bytes - free as u64).unwrap();
        let Err(error) = Store::open(&state) else { break };
        failures += 1;
        assert!(matches!(error, StoreError::NotRestored { .. }), "{free}: {error:?}");
        assert!(error.hints()[0].contains("free disk space"), "{error:?}");
        assert!(std::fs::read(&file).unwrap() == damaged, "{free}: the damaged database is changed");
        assert_eq!(file_names(&state), names, "{free}");
    }
    assert!(failures > 10, "{failures}");
    std::fs::remove_file(&ballast).unwrap();
    assert_eq!(Store::open(&state).unwrap().memories("ci").await.unwrap().len(), 100);
    assert_eq!(damage_reports(&state).len(), 1);
    writeln!(std::io::stdout(), "\nall passed").unwrap();
}

#[test]
fn damaged_database_is_left_unchanged_while_the_disk_is_full() {
    on_a_small_disk("tests::full_disk::child_with_a_damaged_database");
}
