//! Opens the database: made, brought up to date, or, if it is broken, replaced by what can be read of it.
//!
//! While a connection lives, nothing in the process opens the file by any other way: when that is closed, the locks of
//! `SQLite` are gone, and another process takes the database for one that nobody uses.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode};
use rustix::fs::{Access, AtFlags, CWD, accessat};

use super::StoreError;
use super::locks::{InUse, Turn};
use super::log::Log;
use super::migrations::{MIGRATIONS, format, migrate};
use super::newer::refuse_newer;
use super::replacement::{self, replace};
use super::salvage::check_rows;

pub(super) const NAME: &str = "ringfence.db";

/// Of every database that this program makes.
pub(super) const PAGE_BYTES: usize = 4096;
pub(super) const PAGE: u64 = PAGE_BYTES as u64;

/// How long another server's transaction is waited for.
const PATIENCE: Duration = Duration::from_secs(10);

/// A database that is open, and known to be. The connection ends first.
pub(super) struct Database {
    pub(super) connection: Connection,
    _in_use: InUse,
}

pub(super) fn open(directory: &Path) -> Result<Database, StoreError> {
    let path = directory.join(NAME);
    let _turn = Turn::take(directory)?;
    let mut in_use = InUse::take(directory)?;
    if !in_use.is_alone() {
        // What is wrong with the log was seen by those who opened it before, and cannot be seen while they write it.
        let is_ready = replacement::is_ready(&path);
        let opened = if is_ready { Err(corrupt("its replacement waits".into()).into()) } else { open_at(&path) };
        let why = match opened {
            Err(StoreError::Database(error)) if is_broken(&error) => error.to_string(),
            opened => return opened.map(|connection| Database { connection, _in_use: in_use }),
        };
        if !in_use.wait_until_alone()? {
            return Err(StoreError::BrokenInUse { path, why });
        }
    }
    replacement::finish(&path)?;
    refuse_newer(&path)?;
    let connection = match open_alone(&path) {
        Err(StoreError::Database(error)) if is_broken(&error) => {
            replace(&path, &error)?;
            open_at(&path)?
        }
        opened => opened?,
    };
    in_use.share()?;
    Ok(Database { connection, _in_use: in_use })
}

/// The log is looked at first: `SQLite` keeps only what it understands of it, and says nothing. A file that is there
/// and empty is for it as good as none.
fn open_alone(path: &Path) -> Result<Connection, StoreError> {
    let log = Log::read(path).map_err(|source| StoreError::File { path: path.to_owned(), source })?;
    let is_empty = fs::metadata(path).is_ok_and(|found| found.len() == 0);
    match log.damage.or_else(|| is_empty.then(|| "it is empty".to_owned())) {
        Some(damage) => Err(corrupt(damage).into()),
        None => open_at(path),
    }
}

pub(super) fn open_at(path: &Path) -> Result<Connection, StoreError> {
    make_file(path).map_err(|source| StoreError::File { path: path.to_owned(), source })?;
    check_lengths(path)?;
    let mut connection = Connection::open(path)?;
    connection.busy_timeout(PATIENCE)?;
    // One that turns out to be broken is kept as it was found.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    let checked: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    if checked != "ok" {
        return Err(corrupt(checked).into());
    }
    let format = format(&connection, path)?;
    if let Some(damage) = check_rows(&connection, format == MIGRATIONS.len())? {
        return Err(corrupt(damage).into());
    }
    // By a number in its header, since the file itself can be written: that was tried above.
    if connection.is_readonly("main")? {
        return Err(corrupt("it claims to be for reading only".into()).into());
    }
    connection.pragma_update(None, "journal_mode", "wal")?;
    // With a write-ahead log, a commit survives the death of the process without a sync of its own. Only a power cut
    // can take the last ones back, and the sessions of before are gone then anyway.
    connection.pragma_update(None, "synchronous", "normal")?;
    if format < MIGRATIONS.len() {
        migrate(&mut connection, path)?;
    }
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, false)?;
    Ok(connection)
}

/// Makes the file if it is not there: `SQLite` gives the files beside it the mode of the database itself. One that is
/// there is only asked about, never opened.
fn make_file(path: &Path) -> io::Result<()> {
    match OpenOptions::new().create_new(true).append(true).mode(0o600).open(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        made => return made.map(drop),
    }
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::new(ErrorKind::InvalidInput, "it is not a file"));
    }
    Ok(accessat(CWD, path, Access::READ_OK | Access::WRITE_OK, AtFlags::EACCESS)?)
}

/// Finds what `SQLite` overlooks. A log without a database is taken for one that is left over, and thrown away, but may
/// hold all that there is; and what is missing of a last page is taken for zeros.
fn check_lengths(path: &Path) -> Result<(), StoreError> {
    let length = |path: &Path| fs::metadata(path).map_or(0, |found| found.len());
    match (length(path), length(&beside(path, "-wal"))) {
        (0, 1..) => Err(corrupt("it is empty, and its log is not".into()).into()),
        (cut, 0) if cut % PAGE != 0 => Err(corrupt("its last page is cut off".into()).into()),
        _ => Ok(()),
    }
}

pub(super) fn corrupt(message: String) -> rusqlite::Error {
    rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CORRUPT), Some(message))
}

/// Whether it is the content that is wrong. What cannot be read or written for want of space or rights is not broken.
fn is_broken(error: &rusqlite::Error) -> bool {
    match error.sqlite_error_code() {
        // The last two: a schema that is not ours, and a file that claims to be for reading only.
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase | ErrorCode::Unknown | ErrorCode::ReadOnly) => true,
        Some(_) => false,
        None => !matches!(error, rusqlite::Error::InvalidPath(_)),
    }
}

/// The path with something at its end.
pub(super) fn beside(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    name.into()
}
