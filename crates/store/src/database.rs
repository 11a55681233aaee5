//! Opens and closes the database of a state directory, with the locks, checks and backups that belong to it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rusqlite::Connection;

use crate::backup::{BackupSchedule, BackupThread, Backups, Cancellation};
use crate::connection::{self, Check};
use crate::damage::{DamageMonitor, is_damage_at_open, malformed};
use crate::directory::{DATABASE, length};
use crate::error::StoreError;
use crate::locks::{OpeningLock, OtherUsers, UseLock};
use crate::migrations::refuse_newer;
use crate::recovery;
use crate::shutdown_marker::{self, Shutdown};

/// An open database. The fields are dropped in this order: the lock is the last.
pub(crate) struct Database {
    backup_thread: BackupThread,
    pub(crate) connection: Connection,
    pub(crate) monitor: Arc<DamageMonitor>,
    /// Rows that were changed by migrations, before anything else was written.
    changes_at_open: u64,
    path: PathBuf,
    schedule: BackupSchedule,
    use_lock: UseLock,
}

impl Database {
    /// Opens the database. A damaged one is replaced if no other process uses it.
    pub(crate) fn open(
        directory: &Path,
        schedule: BackupSchedule,
        exclusive_timeout: Duration,
    ) -> Result<Self, StoreError> {
        let path = directory.join(DATABASE);
        let monitor = Arc::new(DamageMonitor::new(path.clone()));
        let _opening = OpeningLock::acquire(directory)?;
        let (use_lock, others) = UseLock::acquire(directory)?;
        let connection = match others {
            OtherUsers::None => open_exclusively(&path, &schedule, &monitor)?,
            others => match open_beside_others(&path, others, &schedule, &monitor) {
                Err(StoreError::Database(error)) if is_damage_at_open(&error) => {
                    if !use_lock.wait_until_exclusive(exclusive_timeout)? {
                        return Err(StoreError::Damaged { path, reason: error.to_string() });
                    }
                    open_exclusively(&path, &schedule, &monitor)?
                }
                opened => opened?,
            },
        };
        use_lock.share()?;
        let backup_thread = BackupThread::start(Backups::new(&path), schedule.clone(), Arc::clone(&monitor))
            .map_err(|source| StoreError::Directory { path: directory.to_owned(), source })?;
        let changes_at_open = connection.total_changes();
        Ok(Self { backup_thread, connection, monitor, changes_at_open, path, schedule, use_lock })
    }

    /// Closes the database. If something was written, a backup is made first, unless there is a recent one.
    pub(crate) fn close(self) {
        let Self { backup_thread, connection, monitor, changes_at_open, path, schedule, use_lock } = self;
        drop(backup_thread);
        let backups = Backups::new(&path);
        let has_written = connection.total_changes() > changes_at_open;
        if has_written && !monitor.is_damaged() && backups.is_older_than(schedule.min_age_at_close) {
            create_backup(&backups, &Cancellation::after(schedule.timeout_at_close), &monitor);
        }
        drop(connection);
        if let Err(error) = record_clean_shutdown(&path, &use_lock) {
            tracing::debug!("the clean shutdown of the state database was not recorded: {error}");
        }
    }
}

/// Opens a database that other processes use. Stores among them have checked it, other programs have not.
fn open_beside_others(
    path: &Path,
    others: OtherUsers,
    schedule: &BackupSchedule,
    monitor: &DamageMonitor,
) -> Result<Connection, StoreError> {
    if recovery::is_pending(path) {
        return Err(malformed("a recovery is not complete".into()).into());
    }
    let check = if others == OtherUsers::Stores { Check::Schema } else { Check::Pages };
    open(path, check, schedule, monitor)
}

/// Opens a database that no other process uses. It is read completely, unless it is as a clean shutdown left it.
fn open_exclusively(path: &Path, schedule: &BackupSchedule, monitor: &DamageMonitor) -> Result<Connection, StoreError> {
    recovery::complete(path)?;
    refuse_newer(path)?;
    let check = match shutdown_marker::last(path) {
        Shutdown::Clean => Check::Schema,
        Shutdown::Unclean => Check::Pages,
        Shutdown::Suspect => Check::Content,
    };
    let connection = match check_existence(path).and_then(|()| open(path, check, schedule, monitor)) {
        Err(StoreError::Database(error)) if is_damage_at_open(&error) => {
            recovery::recover(path, &error.to_string())?;
            open(path, Check::Schema, schedule, monitor)?
        }
        opened => opened?,
    };
    if check != Check::Schema {
        shutdown_marker::forget(path).map_err(|source| StoreError::File { path: path.to_owned(), source })?;
    }
    Ok(connection)
}

fn open(
    path: &Path,
    check: Check,
    schedule: &BackupSchedule,
    monitor: &DamageMonitor,
) -> Result<Connection, StoreError> {
    connection::open(path, check, || {
        create_backup(&Backups::new(path), &Cancellation::after(schedule.timeout), monitor);
    })
}

/// A database that is empty or missing is new, unless it has backups.
fn check_existence(path: &Path) -> Result<(), StoreError> {
    if length(path) == 0 && !Backups::new(path).list().is_empty() {
        return Err(malformed("the file is empty or missing".into()).into());
    }
    Ok(())
}

fn create_backup(backups: &Backups, cancellation: &Cancellation, monitor: &DamageMonitor) {
    if let Err(error) = backups.create(cancellation) {
        error.log(monitor);
    }
}

/// Lets the next start trust the database, if no other process uses it.
fn record_clean_shutdown(path: &Path, use_lock: &UseLock) -> Result<(), StoreError> {
    let directory = path.parent().unwrap_or(Path::new("."));
    let Some(_opening) = OpeningLock::try_acquire(directory)? else { return Ok(()) };
    if use_lock.try_exclusive()? == OtherUsers::None {
        shutdown_marker::record_clean(path).map_err(|source| StoreError::File { path: path.to_owned(), source })?;
    }
    Ok(())
}
