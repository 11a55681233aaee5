//! A disk that is full: whoever writes is told, and is served again when there is space.

use super::*;

const CHILD_DISK: &str = "RINGFENCE_TEST_DISK";

/// Not a test of its own: runs in a mount namespace where the directory is a small disk.
#[tokio::test]
#[ignore = "the child of a_full_disk_is_told_and_outlived"]
async fn child_on_a_small_disk() {
    let Some(disk) = std::env::var_os(CHILD_DISK).map(PathBuf::from) else { return };
    let store = Store::open(&disk.join("state")).unwrap();
    store.upsert_session(record("before", 1)).await.unwrap();
    std::fs::write(disk.join("ballast"), vec![0; 64 << 20]).unwrap_err();
    // What is short may still find room where what is long did not.
    let (mut refusals, mut is_seen) = (Vec::new(), false);
    for number in 0..20_000_u64 {
        if let Err(error) = store.upsert_session(record(&format!("session-{number}"), 2)).await {
            refusals.push(error);
            is_seen = store.check().await.is_err();
        }
        if is_seen {
            break;
        }
    }
    let error = refusals.pop().expect("it is never full");
    assert!(matches!(&error, StoreError::Write(why) if why.contains("full")), "{error:?}");
    assert!(error.hints()[0].contains("disk is not full"), "{error:?}");
    assert!(is_seen, "it is not seen from outside");
    let known = store.sessions().await.unwrap().len();
    std::fs::remove_file(disk.join("ballast")).unwrap();
    store.check().await.expect("it is tried again");
    store.upsert_session(record("after", 3)).await.unwrap();
    store.close().await;
    let sessions = Store::open(&disk.join("state")).unwrap().sessions().await.unwrap();
    assert_eq!((sessions.len(), sessions[0].created, sessions[known].created), (known + 1, 1, 3));
    writeln!(std::io::stdout(), "\nit held").unwrap();
}

#[test]
fn a_full_disk_is_told_and_outlived() {
    on_a_small_disk("tests::full_disk::child_on_a_small_disk");
}

fn on_a_small_disk(child: &str) {
    let disk = tempfile::tempdir().unwrap();
    let mount = "mount -t tmpfs -o size=2m none \"$RINGFENCE_TEST_DISK\" && exec \"$@\"";
    let output = Command::new("unshare")
        .args(["--map-root-user", "--mount", "sh", "-c", mount, "sh"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", child, "--ignored", "--nocapture"])
        .env(CHILD_DISK, disk.path())
        .output()
        .unwrap();
    let (said, complained) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("it held"), "{said}\n{complained}");
}

/// Not a test of its own: a broken database, and no space for what can be read of it.
#[tokio::test]
#[ignore = "the child of a_broken_database_is_left_alone_while_the_disk_is_full"]
async fn child_with_a_broken_database() {
    let Some(disk) = std::env::var_os(CHILD_DISK).map(PathBuf::from) else { return };
    let (state, ballast) = (disk.join("state"), disk.join("ballast"));
    let store = Store::open(&state).unwrap();
    for number in 0..100 {
        store.save_memory("ci", &format!("key-{number}"), format!("\"{}\"", "x".repeat(2000)), None).await.unwrap();
    }
    store.close().await;
    let file = state.join("ringfence.db");
    let mut broken = std::fs::read(&file).unwrap();
    broken[..4096].fill(0x5a);
    std::fs::write(&file, &broken).unwrap();
    // With no space at all, and with some, so that it ends at every step.
    let room = 2 * broken.len() + (256 << 10);
    for left in (0..room).step_by(16 << 10) {
        std::fs::write(&ballast, vec![0; 64 << 20]).unwrap_err();
        let ballast_bytes = std::fs::metadata(&ballast).unwrap().len();
        let file_of_ballast = std::fs::OpenOptions::new().write(true).open(&ballast).unwrap();
        file_of_ballast.set_len(ballast_bytes - left as u64).unwrap();
        let Err(error) = Store::open(&state) else {
            assert!(left > broken.len(), "{left}");
            break;
        };
        assert!(matches!(error, StoreError::NotSaved { .. }), "{left}: {error:?}");
        assert!(error.hints()[0].contains("make room"), "{error:?}");
        assert!(std::fs::read(&file).unwrap() == broken, "{left}: it is not left as it was");
        let mut names: Vec<_> =
            std::fs::read_dir(&state).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        assert_eq!(names, ["ringfence.db", "ringfence.in-use", "ringfence.lock"], "{left}");
    }
    std::fs::remove_file(&ballast).unwrap();
    assert_eq!(Store::open(&state).unwrap().memories("ci").await.unwrap().len(), 100);
    writeln!(std::io::stdout(), "\nit held").unwrap();
}

#[test]
fn a_broken_database_is_left_alone_while_the_disk_is_full() {
    on_a_small_disk("tests::full_disk::child_with_a_broken_database");
}
