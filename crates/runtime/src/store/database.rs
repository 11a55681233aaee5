//! Opens the database: made, brought up to date, or put aside if it is broken.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, TransactionBehavior};
use rustix::fs::{FlockOperation, flock};

use super::StoreError;

const NAME: &str = "ringfence.db";

/// How long another server's transaction is waited for.
const PATIENCE: Duration = Duration::from_secs(10);

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
            let aside = put_aside(&path)?;
            tracing::error!(
                "the database {} was broken ({error}); it is kept as {}, and a new one is made",
                path.display(),
                aside.display()
            );
            open_at(&path)
        }
        opened => opened,
    }
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
    made.map_err(|source| StoreError::Directory { path: path.to_owned(), source })?;
    let mut connection = Connection::open(path)?;
    connection.busy_timeout(PATIENCE)?;
    connection.pragma_update(None, "journal_mode", "wal")?;
    // With a write-ahead log, a commit survives the death of the process without a sync of its own. Only a power cut
    // can take the last ones back, and the sessions of before are gone then anyway.
    connection.pragma_update(None, "synchronous", "normal")?;
    let checked: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    if checked != "ok" {
        return Err(corrupt(checked).into());
    }
    migrate(&mut connection, path)?;
    Ok(connection)
}

fn migrate(connection: &mut Connection, path: &Path) -> Result<(), StoreError> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let found: i64 = transaction.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    let known = MIGRATIONS.len();
    let done = usize::try_from(found).ok().filter(|done| *done <= known);
    let done = done.ok_or_else(|| StoreError::Newer { path: path.to_owned(), found, known })?;
    for migration in &MIGRATIONS[done..] {
        transaction.execute_batch(migration)?;
    }
    transaction.pragma_update(None, "user_version", known)?;
    Ok(transaction.commit()?)
}

fn corrupt(message: String) -> rusqlite::Error {
    rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CORRUPT), Some(message))
}

fn is_broken(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase))
}

/// Gives the database and its log names that are free.
fn put_aside(path: &Path) -> Result<PathBuf, StoreError> {
    let named = |path: &Path, end: &str| PathBuf::from(format!("{}{end}", path.display()));
    let free = (1..10_000).map(|number| named(path, &format!(".broken-{number}"))).find(|aside| !aside.exists());
    let aside = free.unwrap_or_else(|| named(path, ".broken"));
    for end in ["", "-wal", "-shm"] {
        match std::fs::rename(named(path, end), named(&aside, end)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(StoreError::Directory { path: path.to_owned(), source: error });
            }
            _ => {}
        }
    }
    Ok(aside)
}
