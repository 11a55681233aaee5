//! Saves what can be read of a broken database into a new one, table by table and row by row.
//!
//! The tables are read by their trees, never page by page: what lies on pages that are in no tree was deleted, and must
//! not come back. Where the pages that name the tables are lost, those of a new database take their place: one that this
//! program made has its tables at the same pages. Rows that are not what they should be are left out.

mod reading;
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

/// What became of every table.
pub(super) struct Report(Vec<(&'static str, Kept)>);

impl Report {
    /// Whether anything is known to be missing.
    pub(super) fn is_whole(&self) -> bool {
        self.0.iter().all(|(_, kept)| kept.is_whole())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, (table, kept)) in self.0.iter().enumerate() {
            write!(formatter, "{}{table}: {kept}", if number == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

/// Reads the database at `broken`, which is left as it is, into `new`.
pub(super) fn salvage(broken: &Path, new: &mut Connection) -> Result<Report, StoreError> {
    let transaction = new.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let scratch = Scratch::copy(broken)?;
    if scratch.is_empty() {
        // Otherwise its log would be thrown away.
        scratch.graft_schema(&transaction)?;
    }
    let mut report = Vec::new();
    for table in &TABLES {
        report.push((table.name, read_table(&scratch.connection()?, &transaction, table)));
    }
    if report.iter().any(|(_, kept)| !kept.is_readable()) {
        scratch.graft_schema(&transaction)?;
        for (table, (_, kept)) in TABLES.iter().zip(&mut report).filter(|(_, (_, kept))| !kept.is_readable()) {
            *kept = read_table(&scratch.connection()?, &transaction, table);
        }
    }
    transaction.commit()?;
    Ok(Report(report))
}
