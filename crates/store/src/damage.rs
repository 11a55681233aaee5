//! Detects damage to the database: when it is opened, and while it is in use.
//!
//! Damage means that the content of the file is wrong. A full disk, missing permissions and locks are not damage.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rusqlite::types::ValueRef;
use rusqlite::{Connection, ErrorCode};

use crate::directory::{length, with_suffix};
use crate::error::StoreError;
use crate::shutdown_marker;

/// Page size of every database that this program creates.
const PAGE_BYTES: u64 = 4096;

/// Returns the error of a malformed database.
pub(crate) fn malformed(message: String) -> rusqlite::Error {
    rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CORRUPT), Some(message))
}

/// Reads all pages of the database. Takes about 2 ms per MB.
pub(crate) fn quick_check(connection: &Connection) -> rusqlite::Result<()> {
    run_check(connection, "PRAGMA quick_check(1)")
}

/// Reads all pages of a table and its indexes, and compares them with each other.
pub(crate) fn integrity_check(connection: &Connection, table: &str) -> rusqlite::Result<()> {
    run_check(connection, &format!("PRAGMA integrity_check({table})"))
}

fn run_check(connection: &Connection, check: &str) -> rusqlite::Result<()> {
    let result: String = connection.query_row(check, [], |row| row.get(0))?;
    if result == "ok" { Ok(()) } else { Err(malformed(result)) }
}

/// Returns an error if a database is empty or missing and its write-ahead log is not. `SQLite` would delete the log,
/// although it may contain all data.
pub(crate) fn check_log_has_database(path: &Path) -> rusqlite::Result<()> {
    if length(path) == 0 && length(&with_suffix(path, "-wal")) > 0 {
        return Err(malformed("the file is empty or missing, but its write-ahead log is not".into()));
    }
    Ok(())
}

/// Returns an error if the last page is incomplete. `SQLite` would read the missing part as zeros.
pub(crate) fn check_last_page(path: &Path) -> rusqlite::Result<()> {
    if length(&with_suffix(path, "-wal")) == 0 && !length(path).is_multiple_of(PAGE_BYTES) {
        return Err(malformed("the last page is truncated".into()));
    }
    Ok(())
}

/// Reads all rows of a table. Returns an error if a value cannot have been written by this program: the checks of
/// `SQLite` accept text that is not UTF-8, and no number in a table is negative.
pub(crate) fn check_rows(connection: &Connection, table: &str) -> rusqlite::Result<()> {
    let mut statement = connection.prepare(&format!("SELECT * FROM {table}"))?;
    let columns = statement.column_count();
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        for column in 0..columns {
            let is_valid = match row.get_ref(column)? {
                ValueRef::Null | ValueRef::Integer(0..) => true,
                ValueRef::Text(bytes) => std::str::from_utf8(bytes).is_ok(),
                ValueRef::Integer(_) | ValueRef::Real(_) | ValueRef::Blob(_) => false,
            };
            if !is_valid {
                return Err(malformed(format!("a row of the table {table} is invalid")));
            }
        }
    }
    Ok(())
}

/// Returns true for an error that proves damage: a malformed file, or a value of the wrong type.
pub(crate) fn is_damage(error: &rusqlite::Error) -> bool {
    use rusqlite::Error::{FromSqlConversionFailure, IntegralValueOutOfRange, InvalidColumnType, Utf8Error};
    match error.sqlite_error_code() {
        Some(code) => matches!(code, ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase),
        None => matches!(
            error,
            FromSqlConversionFailure(..) | IntegralValueOutOfRange(..) | InvalidColumnType(..) | Utf8Error(..)
        ),
    }
}

/// Returns true for an error while opening that only damage explains. Besides proven damage these are a schema that is
/// not ours (`Unknown`), and a header that forbids writing although the file permits it (`ReadOnly`).
pub(crate) fn is_damage_at_open(error: &rusqlite::Error) -> bool {
    match error.sqlite_error_code() {
        Some(ErrorCode::Unknown | ErrorCode::ReadOnly) => true,
        Some(_) => is_damage(error),
        None => !matches!(error, rusqlite::Error::InvalidPath(_)),
    }
}

/// Notices damage while the database is in use, and makes the next start check it.
pub(crate) struct DamageMonitor {
    path: PathBuf,
    is_damaged: AtomicBool,
}

impl DamageMonitor {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, is_damaged: AtomicBool::new(false) }
    }

    pub(crate) fn is_damaged(&self) -> bool {
        self.is_damaged.load(Ordering::Relaxed)
    }

    /// Notes an error of the database. The first one that proves damage is logged.
    pub(crate) fn observe(&self, error: &rusqlite::Error) {
        if is_damage(error) && !self.is_damaged.swap(true, Ordering::Relaxed) {
            let path = self.path.display();
            tracing::error!("the state database {path} is damaged ({error}); restart to restore the newest backup");
            if let Err(error) = shutdown_marker::record_damage(&self.path) {
                tracing::warn!("the damage was not recorded for the next start: {error}");
            }
        }
    }

    /// Notes the error of a result, and replaces it by [`StoreError::Damaged`] if it proves damage.
    pub(crate) fn examine<T>(&self, result: Result<T, StoreError>) -> Result<T, StoreError> {
        result.map_err(|error| match error {
            StoreError::Database(error) if is_damage(&error) => {
                self.observe(&error);
                StoreError::Damaged { path: self.path.clone(), reason: error.to_string() }
            }
            error => error,
        })
    }
}
