//! The tables as they are read from a broken database: what each column must be.

use rusqlite::types::{Value, ValueRef};
use rusqlite::{Connection, Row};
use serde::de::IgnoredAny;

/// What a value must be to be believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Column {
    Text,
    MaybeText,
    Integer,
    MaybeInteger,
    Json,
}

/// In a copy, a column after the last.
pub(super) const BEYOND: &str = "beyond";

use Column::{Integer, Json, MaybeInteger, MaybeText, Text};

pub(crate) struct Table {
    pub(crate) name: &'static str,
    pub(crate) columns: &'static [(&'static str, Column)],
}

/// All but `server_changes`, which counts anew. What is needed most comes first.
pub(crate) const TABLES: [Table; 10] = [
    Table {
        name: "sessions",
        columns: &[
            ("id", Text),
            ("principal", Text),
            ("template", Text),
            ("flavor", Text),
            ("created", Integer),
            ("address", Text),
        ],
    },
    Table { name: "servers", columns: &[("name", Text), ("uuid", Text), ("entry", Json), ("origin", MaybeText)] },
    Table { name: "pins", columns: &[("server", Text), ("tool", Text), ("accepted", Json)] },
    Table { name: "catalogues", columns: &[("server", Text), ("tools", Json), ("updated", Integer)] },
    Table {
        name: "saved_tools",
        columns: &[
            ("principal", Text),
            ("language", Text),
            ("name", Text),
            ("version", Integer),
            ("source", Text),
            ("doc", Text),
            ("saved", Integer),
        ],
    },
    Table {
        name: "deleted_tools",
        columns: &[("principal", Text), ("language", Text), ("name", Text), ("version", Integer)],
    },
    Table {
        name: "memories",
        columns: &[
            ("principal", Text),
            ("key", Text),
            ("value", Json),
            ("metadata", Json),
            ("created", Integer),
            ("updated", Integer),
        ],
    },
    Table { name: "code_sessions", columns: &[("session", Text), ("principal", Text), ("profile", Text)] },
    Table { name: "session_servers", columns: &[("session", Text), ("server", Text)] },
    Table {
        name: "audit",
        columns: &[
            ("number", Integer),
            ("time_ms", Integer),
            ("principal", MaybeText),
            ("session", MaybeText),
            ("kind", Text),
            ("outcome", Text),
            ("duration_ms", MaybeInteger),
            ("detail", Json),
        ],
    },
];

impl Table {
    pub(crate) fn column_names(&self) -> String {
        self.columns.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
    }

    /// How a copy declares it: without rules, so that all can be read, and so that every row shows how many columns it
    /// has. What a row lacks is a blob, which is in no table of ours; and so is what follows its last column.
    pub(super) fn bare(&self) -> String {
        let column = |(name, _): &(&str, Column)| match *name {
            // Another name for the number of the row, and not in the row itself.
            "number" => "number INTEGER PRIMARY KEY".to_owned(),
            name => format!("{name} DEFAULT x'00'"),
        };
        let columns = self.columns.iter().map(column).collect::<Vec<_>>().join(", ");
        format!("CREATE TABLE {} ({columns}, {BEYOND} DEFAULT x'00')", self.name)
    }

    /// The values of a row of a copy, and nothing if it has other columns than it should.
    pub(super) fn exact_values(&self, row: &Row<'_>) -> Option<Vec<Value>> {
        let beyond = row.get_ref(self.columns.len() + 1).ok()?;
        (beyond == ValueRef::Blob(&[0])).then(|| self.values(row))?
    }

    /// The values of a row, from the second of what was selected; nothing where one is not what it should be.
    fn values(&self, row: &Row<'_>) -> Option<Vec<Value>> {
        let columns = self.columns.iter().enumerate();
        columns.map(|(place, (_, column))| column.value(row.get_ref(place + 1).ok()?)).collect()
    }
}

impl Column {
    fn value(self, found: ValueRef<'_>) -> Option<Value> {
        match (self, found) {
            // None of them counts below zero.
            (Integer | MaybeInteger, ValueRef::Integer(number @ 0..)) => Some(number.into()),
            (Text | MaybeText | Json, ValueRef::Text(bytes)) => {
                let text = std::str::from_utf8(bytes).ok()?;
                let is_fine = self != Json || serde_json::from_str::<IgnoredAny>(text).is_ok();
                is_fine.then(|| text.to_owned().into())
            }
            (MaybeText | MaybeInteger, ValueRef::Null) => Some(Value::Null),
            _ => None,
        }
    }
}

/// Finds what the quick check of `SQLite` does not see: a row that cannot be what was written, or that its table's index
/// does not lead to. The index of the audit, which is long, is not looked at.
/// Tables may be missing from one that was not made by this version.
pub(crate) fn check_rows(connection: &Connection, is_current: bool) -> rusqlite::Result<Option<String>> {
    for table in &TABLES {
        if !connection.table_exists(None, table.name)? {
            if is_current {
                return Ok(Some(format!("it has no {}", table.name)));
            }
            continue;
        }
        if table.name != "audit" {
            let check = format!("PRAGMA integrity_check({})", table.name);
            let checked: String = connection.query_row(&check, [], |row| row.get(0))?;
            if checked != "ok" {
                return Ok(Some(checked));
            }
        }
        let mut statement =
            connection.prepare(&format!("SELECT rowid, {} FROM {}", table.column_names(), table.name))?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            if table.values(row).is_none() {
                return Ok(Some(format!("row {} of {} is damaged", row.get::<_, i64>(0)?, table.name)));
            }
        }
    }
    Ok(None)
}
