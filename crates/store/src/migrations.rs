//! The format of the database: how it is made, and brought up to date.

use std::path::Path;

use rusqlite::{Connection, TransactionBehavior};

use super::StoreError;
use super::database::corrupt;

/// From each format to the next; never changed once released, only added to.
pub(super) const MIGRATIONS: [&str; 3] = [
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

/// An entry of the schema, without the page where it begins.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) kind: String,
    pub(super) name: String,
    pub(super) table: String,
    /// Nothing for what `SQLite` makes by itself.
    pub(super) sql: Option<String>,
}

/// The schema of a database, with the page where each begins: none for what has no pages.
pub(super) fn schema(connection: &Connection) -> rusqlite::Result<Vec<(Entry, u32)>> {
    let mut select =
        connection.prepare("SELECT type, name, tbl_name, sql, rootpage FROM sqlite_schema ORDER BY rowid")?;
    let entries = select.query_map([], |row| {
        let entry = Entry { kind: row.get(0)?, name: row.get(1)?, table: row.get(2)?, sql: row.get(3)? };
        Ok((entry, row.get::<_, Option<u32>>(4)?.unwrap_or_default()))
    })?;
    entries.collect()
}

/// The schema of a new database after so many migrations.
pub(super) fn schema_of_new(migrations: usize) -> rusqlite::Result<Vec<(Entry, u32)>> {
    let mut new = Connection::open_in_memory()?;
    let transaction = new.transaction()?;
    for migration in &MIGRATIONS[..migrations] {
        transaction.execute_batch(migration)?;
    }
    schema(&transaction)
}

/// The number of migrations that were applied to the database. A number above the known ones is always refused, never
/// repaired: only the newer version knows its meaning.
pub(super) fn format(connection: &Connection, path: &Path) -> Result<usize, StoreError> {
    let found: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    let known = MIGRATIONS.len();
    match usize::try_from(found) {
        Err(_) => Err(corrupt(format!("its format is {found}")).into()),
        Ok(done) if done <= known => Ok(done),
        Ok(_) => Err(StoreError::Newer { path: path.to_owned(), found, known }),
    }
}

pub(super) fn migrate(connection: &mut Connection, path: &Path) -> Result<(), StoreError> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Another program may have been faster.
    let done = format(&transaction, path)?;
    for migration in &MIGRATIONS[done..] {
        transaction.execute_batch(migration)?;
    }
    transaction.pragma_update(None, "user_version", MIGRATIONS.len())?;
    Ok(transaction.commit()?)
}
