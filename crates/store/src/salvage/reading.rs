//! Reads the rows of one table around the places that cannot be read.

use std::fmt;

use rusqlite::types::Value;
use rusqlite::{Connection, ErrorCode, Transaction, params_from_iter};

use super::super::StoreError;
use super::table::{BEYOND, Table};

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

    /// Of a table that was not found at all.
    pub(super) fn not_found() -> Self {
        Self { lost_unknown: true, ..Self::default() }
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

/// What stops a read.
enum Failure {
    Read(rusqlite::Error),
    /// In the new database.
    Kept(rusqlite::Error),
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        Self::Read(error)
    }
}

/// An error is not about what is read: there is no space, or no file can be read or written.
pub(super) fn read_table(source: &Connection, target: &Transaction<'_>, table: &Table) -> Result<Kept, StoreError> {
    let mut reader = Reader { source, target, table, kept: Kept::default() };
    let Reach::Until(first) = reader.read(i64::MIN, i64::MAX, Direction::Up)? else { return Ok(reader.kept) };
    let last = match reader.read(first.map_or(i64::MIN, after), i64::MAX, Direction::Down)? {
        Reach::All => return Ok(reader.kept),
        Reach::Until(last) => last,
    };
    match (first, last) {
        // Rows are numbered from one; the last may be any.
        (first, Some(last)) => reader.close_in(first.unwrap_or(0), last)?,
        (_, None) => reader.kept.lost_unknown = true,
    }
    Ok(reader.kept)
}

impl Reader<'_> {
    /// Reads on from both sides of every gap, and from its middle, until nothing more is found.
    fn close_in(&mut self, below: i64, above: i64) -> Result<(), StoreError> {
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
            let Reach::Until(upper) = self.read(middle, above - 1, Direction::Up)? else {
                gaps.push((below, middle));
                continue;
            };
            let lower = match self.read(below + 1, middle - 1, Direction::Down)? {
                Reach::All => None,
                Reach::Until(lower) => Some(lower.unwrap_or(middle)),
            };
            if upper.is_none() {
                self.lose(1);
            }
            gaps.push((upper.unwrap_or(middle), above));
            gaps.extend(lower.map(|lower| (below, lower)));
        }
        Ok(())
    }

    fn lose(&mut self, rows: i64) {
        self.kept.lost_at_most += u64::try_from(rows).unwrap_or_default();
    }

    /// Reads the rows from one number to another, as far as it goes.
    fn read(&mut self, from: i64, to: i64, direction: Direction) -> Result<Reach, StoreError> {
        let mut last = None;
        match self.read_rows(from, to, direction, &mut last) {
            Ok(true) => Ok(Reach::All),
            Err(Failure::Kept(error)) => Err(error.into()),
            Err(Failure::Read(error)) if is_of_the_host(&error) => Err(error.into()),
            Ok(false) | Err(Failure::Read(_)) => Ok(Reach::Until(last)),
        }
    }

    /// False if the rows do not go on as they should.
    fn read_rows(&mut self, from: i64, to: i64, direction: Direction, last: &mut Option<i64>) -> Result<bool, Failure> {
        let Table { name, .. } = self.table;
        let columns = self.table.column_names();
        let order = match direction {
            Direction::Up => "ASC",
            Direction::Down => "DESC",
        };
        let select = format!(
            "SELECT rowid, {columns}, {BEYOND} FROM {name} WHERE rowid BETWEEN ?1 AND ?2 ORDER BY rowid {order}"
        );
        let mut statement = self.source.prepare_cached(&select)?;
        let mut rows = statement.query([from, to])?;
        while let Some(row) = rows.next()? {
            let number: i64 = row.get(0)?;
            // Trees that lead back into themselves would be read without end.
            let goes_on = match (direction, *last) {
                (_, None) => true,
                (Direction::Up, Some(last)) => number > last,
                (Direction::Down, Some(last)) => number < last,
            };
            if !goes_on || number < from || number > to {
                return Ok(false);
            }
            let is_kept = match self.table.exact_values(row) {
                Some(values) => self.keep(values).map_err(Failure::Kept)?,
                None => false,
            };
            if is_kept {
                self.kept.rows += 1;
            } else {
                self.kept.bad += 1;
            }
            *last = Some(number);
        }
        Ok(true)
    }

    /// False for a row that the new database does not take.
    fn keep(&self, values: Vec<Value>) -> rusqlite::Result<bool> {
        let Table { name, columns } = self.table;
        let marks = (1..=columns.len()).map(|place| format!("?{place}")).collect::<Vec<_>>().join(", ");
        let insert = format!("INSERT OR IGNORE INTO {name} ({}) VALUES ({marks})", self.table.column_names());
        match self.target.prepare_cached(&insert)?.execute(params_from_iter(values)) {
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::ConstraintViolation) => Ok(false),
            inserted => Ok(inserted? == 1),
        }
    }
}

/// Whether it says nothing about the rows: the disk is full, or a file cannot be read or written.
fn is_of_the_host(error: &rusqlite::Error) -> bool {
    use ErrorCode::{CannotOpen, DatabaseBusy, DatabaseLocked, DiskFull, OutOfMemory, SystemIoFailure};
    let codes = [CannotOpen, DatabaseBusy, DatabaseLocked, DiskFull, OutOfMemory, SystemIoFailure];
    error.sqlite_error_code().is_some_and(|code| codes.contains(&code))
}

fn after(number: i64) -> i64 {
    number.saturating_add(1)
}
