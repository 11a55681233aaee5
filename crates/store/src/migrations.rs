//! The format of the database: its version number, and the migrations that create and update it.

use std::fs::File;
use std::io::{self, ErrorKind, Read as _};
use std::path::Path;

use rusqlite::{Connection, TransactionBehavior};

use crate::damage::malformed;
use crate::error::StoreError;

/// One migration from each format to the next. Released migrations never change; new ones are appended.
pub(crate) const MIGRATIONS: [&str; 5] = [
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
    // Every change of servers and pins increments one number, by which servers notice changes of other processes.
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
    // For code that calls tools. Rows of a session are deleted with it.
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
    // Rules that were added to the network of a running session.
    "
    CREATE TABLE session_rules (
        session TEXT NOT NULL,
        rule TEXT NOT NULL,
        PRIMARY KEY (session, rule)
    ) STRICT;
    CREATE TRIGGER rules_of_session_deleted AFTER DELETE ON sessions BEGIN
        DELETE FROM session_rules WHERE session = OLD.id;
    END;
",
    // The sessions of calls that name none, by connection. `code_sessions` is unused from here on. It remains, because
    // servers of earlier versions may still be running when a newer program opens the database.
    "
    CREATE TABLE default_sessions (
        session TEXT PRIMARY KEY,
        principal TEXT NOT NULL,
        profile TEXT NOT NULL,
        connection TEXT NOT NULL
    ) STRICT;
    CREATE INDEX default_sessions_of_connection ON default_sessions (principal, connection);
    CREATE TRIGGER default_session_deleted AFTER DELETE ON sessions BEGIN
        DELETE FROM default_sessions WHERE session = OLD.id;
    END;
",
];

/// Tables of the current format.
pub(crate) const TABLES: [&str; 13] = [
    "audit",
    "catalogues",
    "code_sessions",
    "default_sessions",
    "deleted_tools",
    "memories",
    "pins",
    "saved_tools",
    "server_changes",
    "servers",
    "session_rules",
    "session_servers",
    "sessions",
];

/// Position of `PRAGMA user_version` in the header: <https://www.sqlite.org/fileformat2.html#the_database_header>.
const FORMAT_OFFSET: usize = 60;
const MAGIC: &[u8] = b"SQLite format 3\0";

/// Maximum format that is believed if only the header can be read. Formats are numbered one by one, so a higher number
/// in the header is damage.
const MAX_FORMAT_IN_HEADER: u32 = 10_000;

/// Refuses a database of a newer version by its raw header, before anything else decides that it is damaged: a newer
/// version may use a page size or a schema that looks like damage to this one.
///
/// No connection to the database may exist in this process, because closing the file drops the locks of `SQLite`.
pub(crate) fn refuse_newer(path: &Path) -> Result<(), StoreError> {
    let header = match read_header(path) {
        Ok(header) => header,
        Err(error) if matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::NotFound) => return Ok(()),
        Err(source) => return Err(StoreError::File { path: path.to_owned(), source }),
    };
    let [a, b, c, d] = header[FORMAT_OFFSET..] else { return Ok(()) };
    let found = u32::from_be_bytes([a, b, c, d]);
    let known = MIGRATIONS.len();
    let is_newer = found <= MAX_FORMAT_IN_HEADER && usize::try_from(found).is_ok_and(|found| found > known);
    if header.starts_with(MAGIC) && is_newer {
        return Err(StoreError::Newer { path: path.to_owned(), found: found.into(), known });
    }
    Ok(())
}

fn read_header(path: &Path) -> io::Result<[u8; FORMAT_OFFSET + 4]> {
    let mut header = [0; FORMAT_OFFSET + 4];
    // Anything but a regular file is refused later; opening a FIFO would block.
    if std::fs::metadata(path)?.is_file() {
        File::open(path)?.read_exact(&mut header)?;
    }
    Ok(header)
}

/// Returns the number of migrations that were applied to the database. A number above the known ones is an error and
/// never damage: only the newer version knows its meaning.
pub(crate) fn format(connection: &Connection, path: &Path) -> Result<usize, StoreError> {
    let found: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    let known = MIGRATIONS.len();
    match usize::try_from(found) {
        Err(_) => Err(malformed(format!("the format number is {found}")).into()),
        Ok(applied) if applied <= known => Ok(applied),
        Ok(_) => Err(StoreError::Newer { path: path.to_owned(), found, known }),
    }
}

/// Applies the missing migrations in one transaction.
pub(crate) fn migrate(connection: &mut Connection, path: &Path) -> Result<(), StoreError> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Read again under the lock: another process may have migrated it.
    let applied = format(&transaction, path)?;
    for migration in &MIGRATIONS[applied..] {
        transaction.execute_batch(migration)?;
    }
    transaction.pragma_update(None, "user_version", MIGRATIONS.len())?;
    Ok(transaction.commit()?)
}

/// Returns an error if a table of the current format is missing.
pub(crate) fn check_tables(connection: &Connection) -> rusqlite::Result<()> {
    for table in TABLES {
        if !connection.table_exists(None, table)? {
            return Err(malformed(format!("the table {table} is missing")));
        }
    }
    Ok(())
}
