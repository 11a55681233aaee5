//! Opens connections that write to the database, and runs durable transactions on them.
//!
//! While a connection exists, nothing else in the process may open and close the file: closing it drops the locks of
//! `SQLite`, and another process may then delete the write-ahead log.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, Transaction, TransactionBehavior};
use rustix::fs::{Access, AtFlags, CWD, accessat};

use crate::damage::{check_last_page, check_log_has_database, check_rows, integrity_check, malformed, quick_check};
use crate::error::StoreError;
use crate::migrations::{MIGRATIONS, TABLES, check_tables, format, migrate};

/// Maximum time to wait for the transaction of another process.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

/// The extent to which a database is checked when it is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Check {
    /// Its header, format and schema. Takes less than a millisecond.
    Schema,
    /// The structure of all pages, and the content of all tables but `audit`, which is by far the largest.
    Pages,
    /// The structure of all pages, and the content of all tables.
    Content,
}

/// Opens a database, creates it if it does not exist, and brings it to the current format. A database that turns out to
/// be damaged or newer is not changed.
pub(crate) fn open(path: &Path, check: Check, before_migration: impl FnOnce()) -> Result<Connection, StoreError> {
    create_file(path).map_err(|source| StoreError::File { path: path.to_owned(), source })?;
    check_log_has_database(path)?;
    let mut connection = Connection::open(path)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    // Until all checks have passed.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    let format = format(&connection, path)?;
    if format == MIGRATIONS.len() {
        check_tables(&connection)?;
        run(check, &connection, path)?;
    } else {
        // Before a migration, even after a clean shutdown.
        run(check.max(Check::Pages), &connection, path)?;
    }
    // Because of a byte in its header: the file itself is writable, `create_file` has checked that.
    if connection.is_readonly("main")? {
        return Err(malformed("the header forbids writing".into()).into());
    }
    connection.pragma_update(None, "journal_mode", "wal")?;
    // With a write-ahead log, a commit survives the death of the process without a sync. Only a power cut can undo the
    // last commits, and it ends the sessions anyway.
    connection.pragma_update(None, "synchronous", "normal")?;
    if format < MIGRATIONS.len() {
        if format > 0 {
            before_migration();
        }
        migrate(&mut connection, path)?;
    }
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, false)?;
    Ok(connection)
}

fn run(check: Check, connection: &Connection, path: &Path) -> rusqlite::Result<()> {
    if check == Check::Schema {
        return Ok(());
    }
    check_last_page(path)?;
    quick_check(connection)?;
    for table in TABLES {
        let is_checked = check == Check::Content || table != "audit";
        // Those of later formats are missing from an old database.
        if is_checked && connection.table_exists(None, table)? {
            integrity_check(connection, table)?;
            check_rows(connection, table)?;
        }
    }
    Ok(())
}

/// Creates the file if it does not exist, because `SQLite` gives the files beside it the mode of the database. An
/// existing file is examined without opening it.
fn create_file(path: &Path) -> io::Result<()> {
    match OpenOptions::new().create_new(true).append(true).mode(0o600).open(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        created => return created.map(drop),
    }
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::new(ErrorKind::InvalidInput, "not a regular file"));
    }
    Ok(accessat(CWD, path, Access::READ_OK | Access::WRITE_OK, AtFlags::EACCESS)?)
}

/// Runs a transaction whose commit is on the disk when this returns.
pub(crate) fn durable_transaction<T>(
    connection: &mut Connection,
    work: impl FnOnce(&Transaction<'_>) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    connection.pragma_update(None, "synchronous", "full")?;
    let result = (|| {
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let value = work(&transaction)?;
        transaction.commit()?;
        Ok(value)
    })();
    connection.pragma_update(None, "synchronous", "normal")?;
    result
}
