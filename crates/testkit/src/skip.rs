//! Skips are loud: each is written to the log that `scripts/test` reads, and fails CI unless it is known.

use std::io::Write;

/// Records that something was not tested, and why.
pub fn skip(test: &str, reason: &str) {
    eprintln!("skipped: {test}: {reason}");
    if let Some(log) = std::env::var_os("RINGFENCE_SKIP_LOG") {
        let mut log = std::fs::OpenOptions::new().append(true).create(true).open(log).expect("the skip log opens");
        writeln!(log, "{test}: {reason}").expect("the skip log is written");
    }
}
