//! Opens the database: made, brought up to date, or, if it is broken, kept aside and made anew from what can be read.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, TransactionBehavior};
use rustix::fs::{FlockOperation, flock};

use super::StoreError;
use super::salvage::{check_rows, salvage};

const NAME: &str = "ringfence.db";

/// Of every database that this program makes.
pub(super) const PAGE_BYTES: usize = 4096;
pub(super) const PAGE: u64 = PAGE_BYTES as u64;

/// How long another server's transaction is waited for.
const PATIENCE: Duration = Duration::from_secs(10);

/// A number beyond these is damage, and not a newer program.
const MOST_FORMATS: i64 = 10_000;

/// From each format to the next; never changed once released, only added to.
const MIGRATIONS: [&str; 3] = [
    "
    CREATE TABLE sessions (
        id TEXT PRIMARY KEY,
        principal TEXT NOT NULL,
        template TEXT NOT NULL,
        flavor TEXT NOT NULL,
        created INTEGER NOT NULL,
        address TEXT NOT NULL
    ) STRICT;
    CREATE TABLE audit (
        number INTEGER PRIMARY KEY,
        time_ms INTEGER NOT NULL,
        principal TEXT,
        session TEXT,
        kind TEXT NOT NULL,
        outcome TEXT NOT NULL,
        duration_ms INTEGER,
        detail TEXT NOT NULL
    ) STRICT;
    CREATE INDEX audit_of_session ON audit (session, number);
",
    // Whatever touches the servers or the pins counts: a server that looks on sees it by one number.
    "
    CREATE TABLE servers (
        name TEXT PRIMARY KEY,
        uuid TEXT NOT NULL UNIQUE,
        entry TEXT NOT NULL,
        origin TEXT
    ) STRICT;
    CREATE TABLE pins (
        server TEXT NOT NULL,
        tool TEXT NOT NULL,
        accepted TEXT NOT NULL,
        PRIMARY KEY (server, tool)
    ) STRICT;
    CREATE TABLE server_changes (number INTEGER NOT NULL) STRICT;
    INSERT INTO server_changes VALUES (0);
    CREATE TRIGGER servers_inserted AFTER INSERT ON servers BEGIN UPDATE server_changes SET number = number + 1; END;
    CREATE TRIGGER servers_updated AFTER UPDATE ON servers BEGIN UPDATE server_changes SET number = number + 1; END;
    CREATE TRIGGER servers_deleted AFTER DELETE ON servers BEGIN UPDATE server_changes SET number = number + 1; END;
    CREATE TRIGGER pins_inserted AFTER INSERT ON pins BEGIN UPDATE server_changes SET number = number + 1; END;
    CREATE TRIGGER pins_updated AFTER UPDATE ON pins BEGIN UPDATE server_changes SET number = number + 1; END;
    CREATE TRIGGER pins_deleted AFTER DELETE ON pins BEGIN UPDATE server_changes SET number = number + 1; END;
",
    // For code that calls tools. What belongs to a session goes with it.
    "
    CREATE TABLE catalogues (
        server TEXT PRIMARY KEY,
        tools TEXT NOT NULL,
        updated INTEGER NOT NULL
    ) STRICT;
    CREATE TABLE saved_tools (
        principal TEXT NOT NULL,
        language TEXT NOT NULL,
        name TEXT NOT NULL,
        version INTEGER NOT NULL,
        source TEXT NOT NULL,
        doc TEXT NOT NULL,
        saved INTEGER NOT NULL,
        PRIMARY KEY (principal, language, name, version)
    ) STRICT;
    CREATE TABLE deleted_tools (
        principal TEXT NOT NULL,
        language TEXT NOT NULL,
        name TEXT NOT NULL,
        version INTEGER NOT NULL,
        PRIMARY KEY (principal, language, name)
    ) STRICT;
    CREATE TABLE memories (
        principal TEXT NOT NULL,
        key TEXT NOT NULL,
        value TEXT NOT NULL,
        metadata TEXT NOT NULL,
        created INTEGER NOT NULL,
        updated INTEGER NOT NULL,
        PRIMARY KEY (principal, key)
    ) STRICT;
    CREATE TABLE code_sessions (
        session TEXT PRIMARY KEY,
        principal TEXT NOT NULL,
        profile TEXT NOT NULL
    ) STRICT;
    CREATE TABLE session_servers (
        session TEXT NOT NULL,
        server TEXT NOT NULL,
        PRIMARY KEY (session, server)
    ) STRICT;
    CREATE TRIGGER sessions_deleted AFTER DELETE ON sessions BEGIN
        DELETE FROM code_sessions WHERE session = OLD.id;
        DELETE FROM session_servers WHERE session = OLD.id;
    END;
",
];

pub(super) fn open(directory: &Path) -> Result<Connection, StoreError> {
    let path = directory.join(NAME);
    // Servers that start together take turns: only one may find the database broken and put it aside.
    let _turn = take_turn(directory)?;
    match open_at(&path) {
        Err(StoreError::Database(error)) if is_broken(&error) => {
            replace(&path, &error)?;
            open_at(&path)
        }
        opened => opened,
    }
}

/// Keeps a broken database aside, and puts a new one with all that can be read of it in its place.
fn replace(path: &Path, error: &rusqlite::Error) -> Result<(), StoreError> {
    let failed = |source| StoreError::Directory { path: path.to_owned(), source };
    let aside = keep_aside(path)?;
    let new = beside(path, ".new");
    remove_with_log(&new).map_err(failed)?;
    let report = {
        let mut connection = open_at(&new)?;
        // What is in the log only is not seen by whoever reads the file.
        let checkpoint = |connection: &Connection| {
            connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).map_err(StoreError::from)
        };
        checkpoint(&connection)?;
        let report = salvage(&aside, &mut connection);
        checkpoint(&connection)?;
        report
    };
    // Only now is it gone from its own place: whoever dies before this starts again from the beginning.
    remove_with_log(path).map_err(failed)?;
    std::fs::rename(&new, path).map_err(failed)?;
    remove_with_log(&new).map_err(failed)?;
    let (path, aside) = (path.display(), aside.display());
    let kept = match report {
        Ok(report) if report.is_whole() => format!("nothing is known to be lost ({report})"),
        Ok(report) => format!("what could be read is in a new one ({report})"),
        Err(error) => format!("nothing could be read from it, and a new one is made: {error}"),
    };
    tracing::error!("the database {path} was broken ({error}); it is kept as {aside}, and {kept}");
    Ok(())
}

fn take_turn(directory: &Path) -> Result<File, StoreError> {
    let path = directory.join("ringfence.lock");
    let failed = |source| StoreError::Directory { path: directory.to_owned(), source };
    let lock = OpenOptions::new().create(true).append(true).mode(0o600).open(path).map_err(failed)?;
    flock(&lock, FlockOperation::LockExclusive).map_err(|errno| failed(errno.into()))?;
    Ok(lock)
}

fn open_at(path: &Path) -> Result<Connection, StoreError> {
    // SQLite gives the files beside it the mode of the database itself.
    let made = OpenOptions::new().create(true).append(true).mode(0o600).open(path);
    let made = made.map_err(|source| StoreError::File { path: path.to_owned(), source })?;
    check_lengths(&made, path)?;
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

/// Finds what `SQLite` overlooks. A log without a database is taken for one that is left over, and thrown away, but may
/// hold all that there is; and what is missing of a last page is taken for zeros.
fn check_lengths(database: &File, path: &Path) -> Result<(), StoreError> {
    let length = |found: std::io::Result<std::fs::Metadata>| found.map_or(0, |found| found.len());
    let (database, log) = (length(database.metadata()), length(std::fs::metadata(beside(path, "-wal"))));
    match (database, log) {
        (0, 1..) => Err(corrupt("it is empty, and its log is not".into()).into()),
        (cut, 0) if cut % PAGE != 0 => Err(corrupt("its last page is cut off".into()).into()),
        _ => Ok(()),
    }
}

/// How many migrations it has seen.
fn format(connection: &Connection, path: &Path) -> Result<usize, StoreError> {
    let found: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    if !(0..=MOST_FORMATS).contains(&found) {
        return Err(corrupt(format!("its format is {found}")).into());
    }
    let known = MIGRATIONS.len();
    let done = usize::try_from(found).ok().filter(|done| *done <= known);
    done.ok_or_else(|| StoreError::Newer { path: path.to_owned(), found, known })
}

fn migrate(connection: &mut Connection, path: &Path) -> Result<(), StoreError> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Another program may have been faster.
    let done = format(&transaction, path)?;
    for migration in &MIGRATIONS[done..] {
        transaction.execute_batch(migration)?;
    }
    transaction.pragma_update(None, "user_version", MIGRATIONS.len())?;
    Ok(transaction.commit()?)
}

fn corrupt(message: String) -> rusqlite::Error {
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

/// Gives the database and its log further names that are free; they keep their own until a new one takes their place.
fn keep_aside(path: &Path) -> Result<PathBuf, StoreError> {
    let free = (1..10_000).map(|number| beside(path, &format!(".broken-{number}"))).find(|aside| !aside.exists());
    let aside = free.unwrap_or_else(|| beside(path, ".broken"));
    for end in ["", "-wal"] {
        let (from, to) = (beside(path, end), beside(&aside, end));
        if end == "-wal" && std::fs::metadata(&from).is_ok_and(|log| log.len() == 0) {
            continue;
        }
        // Not every file system has links.
        match std::fs::hard_link(&from, &to).or_else(|_| std::fs::copy(&from, &to).map(drop)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(StoreError::Directory { path: to, source: error });
            }
            _ => {}
        }
    }
    Ok(aside)
}

fn remove_with_log(path: &Path) -> std::io::Result<()> {
    for end in ["-shm", "-wal", ""] {
        match std::fs::remove_file(beside(path, end)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// The path with something at its end.
pub(super) fn beside(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    name.into()
}
