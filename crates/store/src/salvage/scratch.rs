//! A copy of a broken database to read from: reading changes it, and the broken one is kept as it was.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags, params};

use super::super::StoreError;
use super::super::database::{PAGE, PAGE_BYTES, beside};
use super::super::log::Log;
use super::table::Table;

/// Removed when dropped.
pub(super) struct Scratch(PathBuf);

impl Scratch {
    /// With the pages of its log that can be trusted in their places; and what is wrong with the log.
    pub(super) fn copy(broken: &Path) -> Result<(Self, Option<String>), StoreError> {
        let scratch = Self(beside(broken, ".salvage"));
        scratch.remove();
        let copied = || {
            let length = fs::copy(broken, &scratch.0)?;
            let copy = scratch.open()?;
            // What is missing of a page that was cut off would be read as zeros.
            copy.set_len(length - length % PAGE)?;
            let log = Log::read(broken)?;
            log.apply(broken, &copy)?;
            give_header(&copy)?;
            Ok(log.damage)
        };
        let log = copied().map_err(|source| scratch.failed(source))?;
        Ok((scratch, log))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Opened so that as much as possible is read, and nothing in it is obeyed.
    pub(super) fn connection(&self) -> Result<Connection, StoreError> {
        let connection = Connection::open_with_flags(&self.0, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        let settings = [
            ("writable_schema", "on"),
            ("trusted_schema", "off"),
            ("cell_size_check", "on"),
            // It is gone soon, and whoever is killed begins anew.
            ("synchronous", "off"),
            ("journal_mode", "memory"),
        ];
        for (name, value) in settings {
            // What cannot be set is not, and then less is read.
            let _ = connection.pragma_update(None, name, value);
        }
        Ok(connection)
    }

    /// Gives it a schema with these tables alone, at these pages. Only the first page is changed, on which nothing else is.
    pub(super) fn graft(&self, roots: &[(&Table, u32)]) -> Result<(), StoreError> {
        let mut page = [0; PAGE_BYTES - HEADER_BYTES];
        page[..8].copy_from_slice(&EMPTY_LEAF);
        self.open()
            .and_then(|copy| copy.write_all_at(&page, HEADER_BYTES as u64))
            .map_err(|source| self.failed(source))?;
        let connection = self.connection()?;
        for (table, root) in roots {
            let insert =
                "INSERT INTO sqlite_schema (type, name, tbl_name, rootpage, sql) VALUES ('table', ?1, ?1, ?2, ?3)";
            connection.execute(insert, params![table.name, root, table.bare()])?;
        }
        Ok(())
    }

    fn open(&self) -> io::Result<File> {
        OpenOptions::new().write(true).open(&self.0)
    }

    fn failed(&self, source: io::Error) -> StoreError {
        StoreError::Directory { path: self.0.clone(), source }
    }

    fn remove(&self) {
        for end in ["", "-wal", "-shm", "-journal"] {
            let _ = fs::remove_file(beside(&self.0, end));
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        self.remove();
    }
}

const HEADER_BYTES: usize = 100;

/// The header of a page of a table with no rows, whose content begins at its end.
const EMPTY_LEAF: [u8; 8] = [13, 0, 0, 0, 0, 0x10, 0, 0];

/// Writes the header as it must be, whatever it was: <https://www.sqlite.org/fileformat2.html#the_database_header>.
fn give_header(copy: &File) -> io::Result<()> {
    let pages = (copy.metadata()?.len() / PAGE).max(1);
    copy.set_len(pages * PAGE)?;
    let mut header = [0; HEADER_BYTES];
    header[..16].copy_from_slice(b"SQLite format 3\0");
    // The length of a page, no log, nothing reserved, and three constants.
    header[16..24].copy_from_slice(&[0x10, 0, 1, 1, 0, 64, 32, 32]);
    let numbers = [
        (24, 1),                                        // changes
        (28, u32::try_from(pages).unwrap_or(u32::MAX)), // the length of the file, in pages
        (40, 1),                                        // changes of the schema
        (44, 4),                                        // the format of the schema
        (56, 1),                                        // UTF-8
        (92, 1),                                        // the changes for which the length is right
        (96, 3_045_000),                                // the version that wrote it
    ];
    for (at, number) in numbers {
        header[at..at + 4].copy_from_slice(&number.to_be_bytes());
    }
    copy.write_all_at(&header, 0)
}
