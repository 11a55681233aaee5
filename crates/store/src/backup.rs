//! Backups of the database: complete copies in the state directory, made with `VACUUM INTO`.
//!
//! The last two are retained. A copy gets its final name only after it was checked and synced, so every file with such a
//! name is complete. A backup is made on its own connection in a read transaction and never delays writers. Its failure
//! is logged and never an error of a writer.

mod schedule;

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use rusqlite::{Connection, ErrorCode, OpenFlags};

use crate::crash_point::crash_point;
use crate::damage::{DamageMonitor, quick_check};
use crate::directory::{length, remove_database, sync_parent, with_suffix};
use crate::locks::BackupLock;

pub(crate) use schedule::{BackupSchedule, BackupThread};

/// Suffixes of the retained backups, the newest first.
const RETAINED: [&str; 2] = [".backup-1", ".backup-2"];

/// Suffix of a backup that is not complete.
const INCOMPLETE: &str = ".backup-new";

/// Instructions of the virtual machine of `SQLite` between two checks of the time.
const PROGRESS_INTERVAL: i32 = 1000;

#[derive(Debug, thiserror::Error)]
pub(crate) enum BackupError {
    #[error("another process is making a backup")]
    InProgress,
    #[error("interrupted, or the time limit was exceeded")]
    Interrupted,
    #[error("{needed} bytes of free disk space are needed, but only {available} are available")]
    DiskSpace { needed: u64, available: u64 },
    #[error(transparent)]
    File(#[from] io::Error),
    #[error(transparent)]
    Database(rusqlite::Error),
}

impl BackupError {
    /// Logs a failed backup. Damage that was found is noted, so that the next start restores an earlier backup.
    pub(crate) fn log(&self, monitor: &DamageMonitor) {
        match self {
            Self::InProgress => {}
            error => tracing::warn!("no backup of the state database was made: {error}"),
        }
        if let Self::Database(error) = self {
            monitor.observe(error);
        }
    }
}

impl From<rusqlite::Error> for BackupError {
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            Some(ErrorCode::OperationInterrupted) => Self::Interrupted,
            _ => Self::Database(error),
        }
    }
}

/// The condition under which a running backup is abandoned.
#[derive(Clone)]
pub(crate) struct Cancellation {
    deadline: Instant,
    is_cancelled: Arc<AtomicBool>,
}

impl Cancellation {
    pub(crate) fn after(timeout: Duration) -> Self {
        Self { deadline: Instant::now() + timeout, is_cancelled: Arc::default() }
    }

    fn is_due(&self) -> bool {
        self.is_cancelled.load(Ordering::Relaxed) || Instant::now() >= self.deadline
    }
}

/// A complete backup.
#[derive(Debug)]
pub(crate) struct Backup {
    pub(crate) path: PathBuf,
    pub(crate) time: SystemTime,
}

/// The backups of one database.
#[derive(Debug, Clone)]
pub(crate) struct Backups {
    database: PathBuf,
}

impl Backups {
    pub(crate) fn new(database: &Path) -> Self {
        Self { database: database.to_owned() }
    }

    /// Returns the retained backups, the newest first.
    pub(crate) fn list(&self) -> Vec<Backup> {
        let find = |suffix: &&str| {
            let path = with_suffix(&self.database, suffix);
            let time = fs::metadata(&path).and_then(|found| found.modified()).ok()?;
            Some(Backup { path, time })
        };
        RETAINED.iter().filter_map(find).collect()
    }

    /// Returns true if there is no backup that was made during this period. One from the future does not count: the
    /// clock was set back.
    pub(crate) fn is_older_than(&self, period: Duration) -> bool {
        let newest = self.list().into_iter().next();
        newest.is_none_or(|newest| newest.time.elapsed().map_or(true, |age| age >= period))
    }

    /// Makes a backup, and removes the oldest one if there are too many.
    pub(crate) fn create(&self, cancellation: &Cancellation) -> Result<(), BackupError> {
        let Some(_lock) = BackupLock::try_acquire(&self.database)? else { return Err(BackupError::InProgress) };
        if cancellation.is_due() {
            return Err(BackupError::Interrupted);
        }
        self.check_disk_space()?;
        let incomplete = with_suffix(&self.database, INCOMPLETE);
        let created = self.copy_to(&incomplete, cancellation).and_then(|()| Ok(self.rotate(&incomplete)?));
        if created.is_err() {
            let _ = remove_database(&incomplete);
        }
        created
    }

    fn copy_to(&self, incomplete: &Path, cancellation: &Cancellation) -> Result<(), BackupError> {
        // A process that was killed may have left one.
        remove_database(incomplete)?;
        // `SQLite` would create it with the default mode.
        OpenOptions::new().create_new(true).write(true).mode(0o600).open(incomplete)?;
        let source = open_read_only(&self.database, cancellation)?;
        let target = incomplete.to_str().ok_or_else(|| io::Error::other("the path of the directory is not UTF-8"))?;
        source.execute("VACUUM INTO ?1", [target])?;
        crash_point("backup written");
        quick_check(&open_read_only(incomplete, cancellation)?)?;
        File::open(incomplete)?.sync_all()?;
        Ok(())
    }

    /// Between the two renames the newest backup has the name of the second newest.
    fn rotate(&self, complete: &Path) -> io::Result<()> {
        let [newest, previous] = RETAINED.map(|suffix| with_suffix(&self.database, suffix));
        if newest.exists() {
            fs::rename(&newest, previous)?;
        }
        crash_point("backups rotated");
        fs::rename(complete, newest)?;
        sync_parent(&self.database)
    }

    /// Leaves as much space as the backup takes, so that it is never the cause of a full disk.
    fn check_disk_space(&self) -> Result<(), BackupError> {
        let directory = self.database.parent().unwrap_or(Path::new("."));
        let disk = rustix::fs::statvfs(directory).map_err(io::Error::from)?;
        let available = disk.f_bavail.saturating_mul(disk.f_frsize);
        let needed = 2 * (length(&self.database) + length(&with_suffix(&self.database, "-wal")));
        if available < needed { Err(BackupError::DiskSpace { needed, available }) } else { Ok(()) }
    }
}

/// Opens a connection whose statements fail when they are cancelled.
fn open_read_only(path: &Path, cancellation: &Cancellation) -> rusqlite::Result<Connection> {
    let mut connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    let cancellation = cancellation.clone();
    connection.progress_handler(PROGRESS_INTERVAL, Some(move || cancellation.is_due()))?;
    Ok(connection)
}
