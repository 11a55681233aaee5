//! Replaces a damaged database with the newest usable backup, or with an empty database if there is none.
//!
//! No other process may have the database open. A process that is killed in between loses nothing:
//!
//! 1. The replacement is prepared in a separate file. Until it is complete, the damaged database is not touched.
//! 2. The report is written under a temporary name. From here on, the next start completes the recovery.
//! 3. The damaged files are renamed, never deleted, and the replacement is renamed to the database.
//! 4. The report is renamed to its final name beside the damaged files.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use ringfence_core::{AuditEvent, AuditKind};
use rusqlite::Connection;

use crate::audit_writes;
use crate::backup::{Backup, Backups};
use crate::connection::{self, Check};
use crate::crash_point::crash_point;
use crate::damage::is_damage_at_open;
use crate::damage_report::{DamageReport, REPORT, RestoredBackup};
use crate::directory::{SIDE_FILES, remove_database, remove_if_exists, sync_parent, with_suffix};
use crate::error::StoreError;

/// Suffix of a report that is not completely written.
const INCOMPLETE: &str = "-new";

/// Replaces a damaged database. If that fails, the damaged database is left unchanged.
pub(crate) fn recover(database: &Path, reason: &str) -> Result<(), StoreError> {
    let replacement = replacement(database);
    let prepared = prepare(database, reason, &replacement)
        .and_then(|report| write_report(&report, &pending(database)).map_err(|source| failed(database, source)));
    if let Err(error) = prepared {
        let _ = remove_prepared(database);
        return match error {
            StoreError::Newer { .. } => Err(error),
            error => {
                let (path, reason) = (database.to_owned(), reason.to_owned());
                Err(StoreError::NotRestored { path, reason, source: Box::new(error) })
            }
        };
    }
    crash_point("report written");
    complete(database)
}

/// Returns true if a recovery was interrupted after its replacement was complete.
pub(crate) fn is_pending(database: &Path) -> bool {
    pending(database).exists()
}

/// Completes a recovery that was interrupted. One whose replacement was not complete is undone.
pub(crate) fn complete(database: &Path) -> Result<(), StoreError> {
    let completed = match DamageReport::read(&pending(database)) {
        Ok(report) => replace(database, &report),
        Err(_) => remove_prepared(database),
    };
    completed.map_err(|source| failed(database, source))
}

fn remove_prepared(database: &Path) -> io::Result<()> {
    let pending = pending(database);
    remove_if_exists(&pending)?;
    remove_if_exists(&with_suffix(&pending, INCOMPLETE))?;
    remove_database(&replacement(database))
}

fn replace(database: &Path, report: &DamageReport) -> io::Result<()> {
    let (replacement, damaged) = (replacement(database), report.damaged_file());
    // Without a replacement, the database is already the new one.
    if replacement.exists() {
        for suffix in SIDE_FILES {
            rename_if_exists(&with_suffix(database, suffix), &with_suffix(&damaged, suffix))?;
        }
        crash_point("log renamed");
        rename_if_exists(database, &damaged)?;
        sync_parent(database)?;
        crash_point("database renamed");
        fs::rename(&replacement, database)?;
        sync_parent(database)?;
        crash_point("replacement renamed");
    }
    fs::rename(pending(database), with_suffix(&damaged, REPORT))?;
    sync_parent(database)
}

/// Prepares the replacement: one file, complete and on the disk.
fn prepare(database: &Path, reason: &str, replacement: &Path) -> Result<DamageReport, StoreError> {
    let mut unusable_backups = Vec::new();
    let mut restored = None;
    for backup in Backups::new(database).list() {
        match restore(&backup, replacement)? {
            Ok(connection) => {
                restored = Some((backup, connection));
                break;
            }
            Err(problem) => unusable_backups.push(format!("{}: {problem}", file_name(&backup))),
        }
    }
    let (backup, mut connection) = if let Some((backup, connection)) = restored {
        (Some(backup), connection)
    } else {
        remove_database(replacement).map_err(|source| failed(replacement, source))?;
        (None, connection::open(replacement, Check::Schema, || {})?)
    };
    let directory = database.parent().unwrap_or(Path::new("."));
    let mut report = DamageReport::new(directory, format_time(&connection, SystemTime::now())?, reason);
    report.unusable_backups = unusable_backups;
    if let Some(backup) = backup {
        let time = format_time(&connection, backup.time)?;
        report.restored = Some(RestoredBackup { file: file_name(&backup), time });
    }
    record_in_audit(&mut connection, &report)?;
    // The log does not move with the file.
    let is_busy: bool = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))?;
    if is_busy {
        return Err(StoreError::Write("the write-ahead log of the replacement is in use".into()));
    }
    connection.close().map_err(|(_, error)| error)?;
    File::open(replacement).and_then(|file| file.sync_all()).map_err(|source| failed(replacement, source))?;
    crash_point("replacement prepared");
    Ok(report)
}

/// Copies a backup and opens the copy. The inner error is the reason why this backup cannot be used. The outer one is
/// about the host, such as a full disk, or about a backup of a newer version.
fn restore(backup: &Backup, replacement: &Path) -> Result<Result<Connection, String>, StoreError> {
    use ErrorKind::{QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    let copied = remove_database(replacement).and_then(|()| fs::copy(&backup.path, replacement));
    match copied {
        // It would be opened as a new database.
        Ok(0) => return Ok(Err("the file is empty".into())),
        Ok(_) => {}
        Err(error) if matches!(error.kind(), QuotaExceeded | ReadOnlyFilesystem | StorageFull) => {
            return Err(failed(replacement, error));
        }
        Err(error) => return Ok(Err(error.to_string())),
    }
    match connection::open(replacement, Check::Pages, || {}) {
        Ok(connection) => Ok(Ok(connection)),
        Err(StoreError::Database(error)) if is_damage_at_open(&error) => Ok(Err(error.to_string())),
        Err(StoreError::Newer { found, known, .. }) => {
            Err(StoreError::Newer { path: backup.path.clone(), found, known })
        }
        Err(error) => Err(error),
    }
}

fn record_in_audit(connection: &mut Connection, report: &DamageReport) -> Result<(), StoreError> {
    let outcome = if report.restored.is_some() { "backup" } else { "empty" };
    let event = AuditEvent::new(AuditKind::DatabaseRestored, outcome);
    let event = event.with("reason", report.reason.as_str()).with("damaged", report.damaged.as_str());
    let event = match &report.restored {
        Some(restored) => event.with("backup_time", restored.time.as_str()),
        None => event,
    };
    let transaction = connection.transaction()?;
    audit_writes::insert(&transaction, &event)?;
    Ok(transaction.commit()?)
}

/// Formats a time such as `2026-01-31 12:00:00 UTC`.
fn format_time(connection: &Connection, time: SystemTime) -> rusqlite::Result<String> {
    let seconds = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    connection.query_row("SELECT datetime(?1, 'unixepoch') || ' UTC'", [seconds], |row| row.get(0))
}

fn write_report(report: &DamageReport, path: &Path) -> io::Result<()> {
    let incomplete = with_suffix(path, INCOMPLETE);
    let mut file = fs::OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&incomplete)?;
    file.write_all(&serde_json::to_vec(report)?)?;
    file.sync_all()?;
    fs::rename(incomplete, path)?;
    sync_parent(path)
}

fn rename_if_exists(from: &Path, to: &Path) -> io::Result<()> {
    match fs::rename(from, to) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        renamed => renamed,
    }
}

fn file_name(backup: &Backup) -> String {
    backup.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The database that will replace the damaged one.
fn replacement(database: &Path) -> PathBuf {
    with_suffix(database, ".restored")
}

/// The report of a recovery that is not complete.
fn pending(database: &Path) -> PathBuf {
    with_suffix(database, ".recovery")
}

fn failed(path: &Path, source: io::Error) -> StoreError {
    StoreError::File { path: path.to_owned(), source }
}
