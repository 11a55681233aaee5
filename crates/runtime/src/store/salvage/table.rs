//! The tables as they are read from a broken database: what each column must be.

use rusqlite::types::{Value, ValueRef};
use rusqlite::{Connection, Row};
use serde::de::IgnoredAny;

/// What a value must be to be believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Column {
    Text,
    MaybeText,
    Integer,
    MaybeInteger,
    Json,
}

use Column::{Integer, Json, MaybeInteger, MaybeText, Text};

pub(in super::super) struct Table {
    pub(in super::super) name: &'static str,
    pub(in super::super) columns: &'static [(&'static str, Column)],
}

/// All but `server_changes`, which counts anew. What is needed most comes first.
pub(in super::super) const TABLES: [Table; 10] = [
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
    Table { name: "pins", columns: &[("server", Text), ("tool", Text), ("accepted", Text)] },
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
    pub(in super::super) fn column_names(&self) -> String {
        self.columns.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
    }

    /// The values of a row, from the second of what was selected; nothing where one is not what it should be.
    pub(super) fn values(&self, row: &Row<'_>) -> Option<Vec<Value>> {
        let columns = self.columns.iter().enumerate();
        columns.map(|(place, (_, column))| column.value(row.get_ref(place + 1).ok()?)).collect()
    }
}

impl Column {
    fn value(self, found: ValueRef<'_>) -> Option<Value> {
        match (self, found) {
            (Integer | MaybeInteger, ValueRef::Integer(number)) => Some(number.into()),
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

/// Finds a row that cannot be what was written, which the checks of `SQLite` do not see. The audit, which is long, and of
/// which nothing is done, is not looked at.
/// Tables may be missing from one that was not made by this version.
pub(in super::super) fn check_rows(connection: &Connection, is_current: bool) -> rusqlite::Result<Option<String>> {
    for table in TABLES.iter().filter(|table| table.name != "audit") {
        if !connection.table_exists(None, table.name)? {
            if is_current {
                return Ok(Some(format!("it has no {}", table.name)));
            }
            continue;
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
