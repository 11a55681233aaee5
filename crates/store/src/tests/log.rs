//! Logs that were cut, or filled with noise: what was committed before is there; and what is lost is told, unless nobody
//! can tell it from a transaction that was not finished.

use super::samples::{Found, PAGE, Sample, assert_nothing_is_invented, noise, recovered, rows_of, sample};
use super::*;

const HEADER: usize = 32;
const FRAME: usize = 24 + PAGE;

/// Where the frames of this log end that commit something, from its beginning.
pub(super) fn commits(sample: &Sample) -> Vec<usize> {
    let salts = &sample.log[16..24];
    let frames = sample.log[HEADER..].chunks_exact(FRAME).enumerate();
    let commits = frames.filter(|(_, frame)| &frame[8..16] == salts && frame[4..8] != [0; 4]);
    commits.map(|(number, _)| HEADER + (number + 1) * FRAME).collect()
}

#[tokio::test]
async fn a_log_that_is_whole_is_not_taken_for_damaged() {
    let sample = sample(true).await;
    let found = Found::with_log(&sample.database, &sample.log);
    for found in [found, Found { index: Some(&sample.index), ..found }] {
        let found = recovered(found, "a killed server").await;
        assert_eq!((found.rows, found.told), (sample.rows.clone(), None));
    }
}

#[tokio::test]
async fn a_last_transaction_that_was_not_finished_is_no_damage() {
    let sample = sample(true).await;
    let commits = commits(&sample);
    let [.., before, last] = commits[..] else { panic!("too few commits") };
    // As if the process were killed while it wrote the last: everything until then is there, and it was not noted.
    for cut in [last - 1, last - PAGE, last - PAGE - 1, before + 24, before + 1] {
        let how = format!("cut at {cut}, after {before}");
        let found = recovered(Found::with_log(&sample.database, &sample.log[..cut]), &how).await;
        assert_eq!(found.told, None, "{how}");
        assert_nothing_is_invented(&found.rows, &sample.ever, &how);
    }
    // A log is used again from its beginning; what follows is of before.
    let mut used_again = sample.log[..before].to_vec();
    let mut old = sample.log[HEADER..last].to_vec();
    old.chunks_exact_mut(FRAME).for_each(|frame| frame[8] ^= 1);
    used_again.extend(old);
    let found = recovered(Found::with_log(&sample.database, &used_again), "used again").await;
    assert_eq!(found.told, None);
}

#[tokio::test]
async fn noise_in_the_log_is_told_and_what_was_committed_before_is_there() {
    let (sample, mut noise) = (sample(true).await, noise());
    let commits = commits(&sample);
    assert!(commits.len() > 10, "{}", commits.len());
    let last = commits[commits.len() - 1];
    let frames = (last - HEADER) / FRAME;
    let middle = HEADER + frames / 2 * FRAME;
    let random = (0..8).map(|_| HEADER + noise.below(frames) * FRAME + 24 + noise.below(PAGE - 64)).collect::<Vec<_>>();
    for at in [0, 8, 16, 24, HEADER, HEADER + 24, middle, middle + 24, last - PAGE].into_iter().chain(random) {
        let mut log = sample.log.clone();
        noise.fill(&mut log[at..at + 8]);
        let how = format!("noise at {at} of {last}");
        for index in [None, Some(&sample.index[..])] {
            let found = recovered(Found { index, ..Found::with_log(&sample.database, &log) }, &how).await;
            let told = found.told.unwrap_or_else(|| panic!("{how}: it is not told"));
            assert!(told.contains("its log") && told.contains("what could be read"), "{how}: {told}");
            assert_nothing_is_invented(&found.rows, &sample.ever, &how);
            // Up to the last commit before the noise it is as if that had been the last one.
            let whole = commits.iter().copied().take_while(|commit| *commit <= at).last().unwrap_or(0);
            let expected = if at < HEADER { None } else { Some(state_after(&sample, whole)) };
            if let Some(expected) = expected {
                assert_eq!(found.rows, expected, "{how}");
            }
        }
    }
}

/// What is in the database and this much of its log.
fn state_after(sample: &Sample, length: usize) -> samples::Rows {
    let parent = tempfile::tempdir().unwrap();
    Found::with_log(&sample.database, &sample.log[..length]).put(parent.path());
    rows_of(&parent.path().join("ringfence.db"))
}

#[tokio::test]
async fn a_beginning_of_the_log_that_is_damaged_takes_nothing_with_it() {
    let sample = sample(true).await;
    for at in (0..24).step_by(3) {
        let mut log = sample.log.clone();
        log[at] ^= 0xff;
        let how = format!("byte {at} of the log");
        let found = recovered(Found::with_log(&sample.database, &log), &how).await;
        assert!(found.told.is_some(), "{how}");
        assert_eq!(found.rows, sample.rows, "{how}");
    }
}

#[tokio::test]
async fn a_log_that_was_cut_off_is_told_as_long_as_its_index_is_there() {
    let sample = sample(true).await;
    let commits = commits(&sample);
    let last = commits[commits.len() - 1];
    for cut in [0, 1, 31, 32, 33, last / 3, last / 2, commits[commits.len() - 2], last - PAGE, last - 1] {
        let how = format!("the log cut at {cut} of {last}");
        let cut = Found::with_log(&sample.database, &sample.log[..cut]);
        let found = recovered(Found { index: Some(&sample.index), ..cut }, &how).await;
        assert!(found.told.is_some(), "{how}");
        assert_nothing_is_invented(&found.rows, &sample.ever, &how);
        let found = recovered(cut, &how).await;
        assert_nothing_is_invented(&found.rows, &sample.ever, &how);
    }
    let gone = Found { log: None, index: Some(&sample.index), database: &sample.database };
    assert!(recovered(gone, "no log").await.told.unwrap().contains("is gone"));
}

#[tokio::test]
async fn a_log_whose_database_is_gone_is_not_thrown_away() {
    let (_parent, path) = directory();
    let store = Store::open(&path).unwrap();
    for number in 0..20 {
        store.upsert_session(record(&format!("session-{number}"), number)).await.unwrap();
    }
    let log = std::fs::read(path.join("ringfence.db-wal")).unwrap();
    let found = recovered(Found::with_log(&[], &log), "the database is empty").await;
    assert!(found.told.is_some());
    assert_eq!(found.rows, rows_of(&path.join("ringfence.db")));
    assert_eq!(found.rows["sessions"].len(), 20);
}
