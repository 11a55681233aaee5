//! Reads the rows of one table around the places that cannot be read.

use std::fmt;

use rusqlite::types::Value;
use rusqlite::{Connection, Transaction, params_from_iter};

use super::table::Table;

/// How often a table is tried again from another place.
const MOST_PROBES: usize = 4096;

/// What was kept of a table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Kept {
    rows: u64,
    /// Rows that were read and are not what they should be, or are there twice.
    bad: u64,
    /// Numbers between rows that were read, whose rows, if there were any, are lost.
    lost_at_most: u64,
    /// Nothing tells how many rows there were.
    lost_unknown: bool,
}

impl Kept {
    pub(super) fn is_whole(&self) -> bool {
        self.bad == 0 && self.lost_at_most == 0 && !self.lost_unknown
    }

    /// Whether the table was found at all.
    pub(super) fn is_readable(&self) -> bool {
        self.rows > 0 || !self.lost_unknown
    }
}

impl fmt::Display for Kept {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.rows, self.lost_unknown) {
            (0, true) => return formatter.write_str("cannot be read"),
            (rows, _) => write!(formatter, "{rows} rows kept")?,
        }
        if self.bad > 0 {
            write!(formatter, ", {} damaged", self.bad)?;
        }
        match (self.lost_unknown, self.lost_at_most) {
            (true, _) => formatter.write_str(", an unknown number lost"),
            (false, 0) => Ok(()),
            (false, most) => write!(formatter, ", up to {most} lost"),
        }
    }
}

#[derive(Clone, Copy)]
enum Direction {
    Up,
    Down,
}

struct Reader<'a> {
    source: &'a Connection,
    target: &'a Transaction<'a>,
    table: &'a Table,
    kept: Kept,
}

/// How a read from one place went on.
enum Reach {
    /// To the end of what was asked for.
    All,
    /// To this row, or to none.
    Until(Option<i64>),
}

pub(super) fn read_table(source: &Connection, target: &Transaction<'_>, table: &Table) -> Kept {
    let mut reader = Reader { source, target, table, kept: Kept::default() };
    let Reach::Until(first) = reader.read(i64::MIN, i64::MAX, Direction::Up) else { return reader.kept };
    let last = match reader.read(first.map_or(i64::MIN, after), i64::MAX, Direction::Down) {
        Reach::All => return reader.kept,
        Reach::Until(last) => last,
    };
    match (first, last) {
        // Rows are numbered from one; the last may be any.
        (first, Some(last)) => reader.close_in(first.unwrap_or(0), last),
        (_, None) => reader.kept.lost_unknown = true,
    }
    reader.kept
}

impl Reader<'_> {
    /// Reads on from both sides of every gap, and from its middle, until nothing more is found.
    fn close_in(&mut self, below: i64, above: i64) {
        let (mut gaps, mut probes) = (vec![(below, above)], 0);
        while let Some((below, above)) = gaps.pop() {
            let width = above.saturating_sub(below).saturating_sub(1);
            if width <= 0 {
                continue;
            }
            if probes >= MOST_PROBES {
                self.lose(width);
                continue;
            }
            probes += 1;
            let middle = below + (above - below) / 2;
            let Reach::Until(upper) = self.read(middle, above - 1, Direction::Up) else {
                gaps.push((below, middle));
                continue;
            };
            let lower = match self.read(below + 1, middle - 1, Direction::Down) {
                Reach::All => None,
                Reach::Until(lower) => Some(lower.unwrap_or(middle)),
            };
            if upper.is_none() {
                self.lose(1);
            }
            gaps.push((upper.unwrap_or(middle), above));
            gaps.extend(lower.map(|lower| (below, lower)));
        }
    }

    fn lose(&mut self, rows: i64) {
        self.kept.lost_at_most += u64::try_from(rows).unwrap_or_default();
    }

    /// Reads the rows from one number to another, as far as it goes.
    fn read(&mut self, from: i64, to: i64, direction: Direction) -> Reach {
        let Table { name, .. } = self.table;
        let columns = self.table.column_names();
        let order = match direction {
            Direction::Up => "ASC",
            Direction::Down => "DESC",
        };
        // By its own tree alone: an index may be broken where the table is not.
        let select = format!(
            "SELECT rowid, {columns} FROM {name} NOT INDEXED WHERE rowid BETWEEN ?1 AND ?2 ORDER BY rowid {order}"
        );
        let Ok(mut statement) = self.source.prepare_cached(&select) else { return Reach::Until(None) };
        let Ok(mut rows) = statement.query([from, to]) else { return Reach::Until(None) };
        let mut last = None;
        loop {
            match rows.next() {
                Ok(None) => return Reach::All,
                Err(_) => return Reach::Until(last),
                Ok(Some(row)) => {
                    let Ok(number) = row.get::<_, i64>(0) else { return Reach::Until(last) };
                    // Trees that lead back into themselves would be read without end.
                    let goes_on = match (direction, last) {
                        (_, None) => true,
                        (Direction::Up, Some(last)) => number > last,
                        (Direction::Down, Some(last)) => number < last,
                    };
                    if !goes_on || number < from || number > to {
                        return Reach::Until(last);
                    }
                    if self.table.values(row).is_some_and(|values| self.keep(values)) {
                        self.kept.rows += 1;
                    } else {
                        self.kept.bad += 1;
                    }
                    last = Some(number);
                }
            }
        }
    }

    fn keep(&self, values: Vec<Value>) -> bool {
        let Table { name, columns } = self.table;
        let marks = (1..=columns.len()).map(|place| format!("?{place}")).collect::<Vec<_>>().join(", ");
        let insert = format!("INSERT OR IGNORE INTO {name} ({}) VALUES ({marks})", self.table.column_names());
        let inserted =
            self.target.prepare_cached(&insert).and_then(|mut insert| insert.execute(params_from_iter(values)));
        inserted.is_ok_and(|rows| rows == 1)
    }
}

fn after(number: i64) -> i64 {
    number.saturating_add(1)
}
