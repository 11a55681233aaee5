//! Saves what can be read of a broken database into a new one, table by table and row by row.
//!
//! The tables are read by their trees, never page by page: what lies on pages that are in no tree was deleted, and must
//! not come back. Where a tree begins is known from the database itself, or, where that page is lost, from a new one
//! (`roots`). Rows that are not what they should be are left out.

mod reading;
mod roots;
mod scratch;
pub(super) mod table;

use std::fmt;
use std::path::Path;

use rusqlite::{Connection, TransactionBehavior};

use super::StoreError;
use reading::{Kept, read_table};
use scratch::Scratch;
use table::TABLES;
pub(super) use table::check_rows;

/// What became of the log and of every table.
pub(super) struct Report {
    log: Option<String>,
    tables: Vec<(&'static str, Kept)>,
}

impl Report {
    /// Whether anything is known to be missing.
    pub(super) fn is_whole(&self) -> bool {
        self.log.is_none() && self.tables.iter().all(|(_, kept)| kept.is_whole())
    }

    /// The tables that may lack rows: all of them if commits in the log were lost.
    pub(super) fn lost_tables(&self) -> Vec<&'static str> {
        let is_lost = |(_, kept): &&(&'static str, Kept)| self.log.is_some() || !kept.is_whole();
        self.tables.iter().filter(is_lost).map(|(table, _)| *table).collect()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(damage) = &self.log {
            write!(formatter, "{damage}, ")?;
        }
        for (number, (table, kept)) in self.tables.iter().enumerate() {
            write!(formatter, "{}{table}: {kept}", if number == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

/// Reads the database at `broken`, which nobody has open, and which is left as it is, into `new`. An error is about the
/// new one, or about reading and writing files at all: what is wrong inside the broken one is in the report.
pub(super) fn salvage(broken: &Path, new: &mut Connection) -> Result<Report, StoreError> {
    let transaction = new.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let (scratch, log) = Scratch::copy(broken)?;
    let roots = roots::find(&scratch)?;
    scratch.graft(&roots)?;
    let source = scratch.connection()?;
    let mut tables = Vec::new();
    for table in &TABLES {
        let is_found = roots.iter().any(|(found, _)| found.name == table.name);
        let kept = if is_found { read_table(&source, &transaction, table)? } else { Kept::not_found() };
        tables.push((table.name, kept));
    }
    transaction.commit()?;
    Ok(Report { log, tables })
}
