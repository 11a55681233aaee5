//! Decides how thoroughly the next start must check the database.
//!
//! After a clean shutdown a marker contains the inode, size and modification time of the database, and a start that
//! finds them unchanged need not read the whole file. Every later change of the file makes the marker invalid, and so
//! does the write-ahead log that a killed process leaves behind. If damage was found while the database was in use, the
//! marker records that instead, until the next start has checked or replaced the database.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};

use crate::directory::{length, remove_if_exists, with_suffix};

const SUSPECT: &str = "damage was found";

/// The state of a database that no process has open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shutdown {
    /// The database is as the last clean shutdown left it.
    Clean,
    /// The last process was killed, or the file was changed since.
    Unclean,
    /// Damage was found while it was in use.
    Suspect,
}

/// Records a clean shutdown, unless the database is suspect. No process may have it open.
pub(crate) fn record_clean(database: &Path) -> io::Result<()> {
    if last(database) == Shutdown::Suspect {
        return Ok(());
    }
    // The kernel stamps writes with the time of its last tick, some milliseconds ago. An exact time differs from the
    // stamp of every later write, even of one in the same tick.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = Timespec { tv_sec: now.as_secs().cast_signed(), tv_nsec: now.subsec_nanos().into() };
    let times = Timestamps { last_access: now, last_modification: now };
    utimensat(CWD, database, &times, AtFlags::empty())?;
    write_marker(database, &stamp(database)?)
}

/// Records that damage was found while the database is in use.
pub(crate) fn record_damage(database: &Path) -> io::Result<()> {
    write_marker(database, SUSPECT)
}

/// Removes the marker after a check or a recovery.
pub(crate) fn forget(database: &Path) -> io::Result<()> {
    remove_if_exists(&marker(database))
}

/// Returns how the database was left. No process may have it open.
pub(crate) fn last(database: &Path) -> Shutdown {
    match fs::read_to_string(marker(database)) {
        Ok(text) if text == SUSPECT => Shutdown::Suspect,
        Ok(text) if length(&with_suffix(database, "-wal")) == 0 && stamp(database).is_ok_and(|now| now == text) => {
            Shutdown::Clean
        }
        _ => Shutdown::Unclean,
    }
}

fn stamp(database: &Path) -> io::Result<String> {
    let found = fs::metadata(database)?;
    Ok(format!("{} {} {}.{:09}", found.ino(), found.len(), found.mtime(), found.mtime_nsec()))
}

fn write_marker(database: &Path, text: &str) -> io::Result<()> {
    let marker = fs::OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(marker(database));
    marker?.write_all(text.as_bytes())
}

fn marker(database: &Path) -> PathBuf {
    with_suffix(database, ".shutdown")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_change_of_the_file_invalidates_the_marker() {
        let directory = tempfile::tempdir().unwrap();
        let database = directory.path().join("db");
        fs::write(&database, "content").unwrap();
        assert_eq!(last(&database), Shutdown::Unclean, "there is no marker");
        // Many of these writes are in one tick of the kernel's clock.
        for round in 0..50 {
            record_clean(&database).unwrap();
            assert_eq!(last(&database), Shutdown::Clean, "round {round}");
            fs::write(&database, "CONTENT").unwrap();
            assert_eq!(last(&database), Shutdown::Unclean, "round {round}");
        }
        record_clean(&database).unwrap();
        let log = with_suffix(&database, "-wal");
        for (content, shutdown) in [("", Shutdown::Clean), ("commits", Shutdown::Unclean)] {
            fs::write(&log, content).unwrap();
            assert_eq!(last(&database), shutdown, "with the log {content:?}");
        }
    }

    #[test]
    fn damage_outlasts_a_clean_shutdown() {
        let directory = tempfile::tempdir().unwrap();
        let database = directory.path().join("db");
        fs::write(&database, "content").unwrap();
        record_clean(&database).unwrap();
        record_damage(&database).unwrap();
        record_clean(&database).unwrap();
        assert_eq!(last(&database), Shutdown::Suspect);
        forget(&database).unwrap();
        assert_eq!(last(&database), Shutdown::Unclean);
        forget(&database).unwrap();
    }
}
