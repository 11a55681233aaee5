//! Recorded skips: `scripts/test` counts them, and in CI fails on those that `tests/known-skips.txt` does not list.

use std::io::Write;

/// Records that a test or a part of it did not run, and why.
pub fn skip(test: &str, reason: &str) {
    eprintln!("skipped: {test}: {reason}");
    if let Some(log) = std::env::var_os("RINGFENCE_SKIP_LOG") {
        let mut log = std::fs::OpenOptions::new().append(true).create(true).open(log).expect("open the skip log");
        // One write, since tests in other processes append to the same file.
        log.write_all(format!("{test}: {reason}\n").as_bytes()).expect("write the skip log");
    }
}
