//! Servers that are killed while they replace a broken database: the next one ends with the same, and nothing is left.

use super::log::commits;
use super::samples::{Found, assert_is_kept, noise, recovered, rows_of, sample};
use super::*;

const CHILD_DIRECTORY: &str = "RINGFENCE_TEST_CRASHING_STORE";
const CHILD_STEP: &str = "RINGFENCE_TEST_CRASH_AT";

/// Every step after which a process could be killed.
const STEPS: [&str; 5] = ["made", "aside", "ready", "without a log", "in its place"];

/// Ends the process as a kill would, if it is the step that a test wants.
pub(crate) fn reached(step: &str) {
    assert!(STEPS.contains(&step), "{step} is tried by no test");
    if std::env::var_os(CHILD_STEP).is_some_and(|wanted| wanted == step) {
        std::process::abort();
    }
}

/// Not a test of its own: opens what is broken, and dies.
#[test]
#[ignore = "the child of whoever_is_killed_while_it_replaces_a_broken_database_loses_nothing"]
fn child_that_dies() {
    let Some(path) = std::env::var_os(CHILD_DIRECTORY) else { return };
    drop(Store::open(&PathBuf::from(path)));
}

#[tokio::test]
async fn whoever_is_killed_while_it_replaces_a_broken_database_loses_nothing() {
    let (sample, mut noise) = (sample(true).await, noise());
    // The worst of it: without its log the database is whole, but older.
    let mut log = sample.log.clone();
    let commits = commits(&sample);
    let middle = commits[commits.len() / 2];
    noise.fill(&mut log[middle..middle + 64]);
    let found = Found { index: Some(&sample.index), ..Found::with_log(&sample.database, &log) };
    let expected = recovered(found, "nobody is killed").await.rows;
    assert_ne!(expected, recovered(Found::database(&sample.database), "without a log").await.rows);
    for steps in STEPS.iter().map(|step| vec![*step]).chain([STEPS.to_vec()]) {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path();
        found.put(path);
        for step in &steps {
            let died = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "tests::crashes::child_that_dies", "--ignored"])
                .env(CHILD_DIRECTORY, path)
                .env(CHILD_STEP, step)
                .output()
                .unwrap();
            assert!(!died.status.success(), "{step}: {died:?}");
        }
        let how = format!("killed at {steps:?}");
        Store::open(path).unwrap().close().await;
        assert_eq!(rows_of(&path.join("ringfence.db")), expected, "{how}");
        assert_is_kept(path, found, &how);
        let mut left: Vec<_> =
            std::fs::read_dir(path).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
        left.sort();
        let names = ["db", "db.broken-1", "db.broken-1-wal", "db.broken-1.report", "in-use", "lock"]
            .map(|end| format!("ringfence.{end}"));
        assert_eq!(left, names, "{how}");
    }
}

#[tokio::test]
async fn what_earlier_programs_left_behind_is_removed() {
    let (_parent, path) = directory();
    Store::open(&path).unwrap().close().await;
    let left =
        ["ringfence.db.new", "ringfence.db.new-wal", "ringfence.db.broken-1.salvage", "ringfence.db.salvage-shm"];
    let others = ["ringfence.db.broken-1", "sessions.new"];
    for name in left.iter().chain(&others) {
        std::fs::write(path.join(name), "x").unwrap();
    }
    drop(Store::open(&path).unwrap());
    assert_eq!(left.map(|name| path.join(name).exists()), [false; 4]);
    assert_eq!(others.map(|name| path.join(name).exists()), [true; 2]);
}
