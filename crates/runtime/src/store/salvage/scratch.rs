//! A copy of a broken database to read from: reading may change it, and the broken one is kept as it was.

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags};

use super::super::StoreError;
use super::super::database::{PAGE, PAGE_BYTES, beside};

/// Offsets in the first page: <https://www.sqlite.org/fileformat2.html>.
const CHANGES: usize = 24;
const PAGES: usize = 28;
const FREE_PAGES: std::ops::Range<usize> = 32..40;
const PAGES_AS_OF: usize = 92;

/// Removed when dropped.
pub(super) struct Scratch(PathBuf);

impl Scratch {
    pub(super) fn copy(broken: &Path) -> Result<Self, StoreError> {
        let scratch = Self(beside(broken, ".salvage"));
        scratch.remove();
        let failed = |source| StoreError::Directory { path: scratch.0.clone(), source };
        let length = fs::copy(broken, &scratch.0).map_err(failed)?;
        // What is missing of a page that was cut off would be read as zeros.
        let whole = fs::OpenOptions::new().write(true).open(&scratch.0).map_err(failed)?;
        whole.set_len(length - length % PAGE).map_err(failed)?;
        match fs::copy(beside(broken, "-wal"), scratch.log()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        Ok(scratch)
    }

    pub(super) fn is_empty(&self) -> bool {
        fs::metadata(&self.0).is_ok_and(|found| found.len() == 0)
    }

    /// Opened so that as much as possible is read, and nothing in it is obeyed.
    pub(super) fn connection(&self) -> Result<Connection, StoreError> {
        let connection = Connection::open_with_flags(&self.0, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        for (name, value) in [("writable_schema", "on"), ("trusted_schema", "off"), ("cell_size_check", "on")] {
            // What cannot be set is not, and then less is read.
            let _ = connection.pragma_update(None, name, value);
        }
        Ok(connection)
    }

    /// Puts the pages of a sound database that name the tables in the place of the broken ones.
    pub(super) fn graft_schema(&self, sound: &Connection) -> Result<(), StoreError> {
        let mut select =
            sound.prepare("SELECT pageno FROM dbstat WHERE name = 'sqlite_schema' ORDER BY pageno DESC")?;
        let pages = select.query_map([], |row| row.get(0))?.collect::<Result<Vec<u32>, _>>()?;
        let pristine = sound.path().map(PathBuf::from).unwrap_or_default();
        self.graft(&pristine, &pages).map_err(|source| StoreError::Directory { path: self.0.clone(), source })
    }

    /// The last comes first, so that the length is known when it is the first one's turn, which names it.
    fn graft(&self, pristine: &Path, pages: &[u32]) -> io::Result<()> {
        let mut file = fs::OpenOptions::new().write(true).open(&self.0)?;
        let mut sound = File::open(pristine)?;
        for number in pages {
            let place = SeekFrom::Start(u64::from(number - 1) * PAGE);
            let mut page = [0; PAGE_BYTES];
            sound.seek(place)?;
            sound.read_exact(&mut page)?;
            if *number == 1 {
                let pages = (file.metadata()?.len() / PAGE).max(1);
                page[PAGES..PAGES + 4].copy_from_slice(&u32::try_from(pages).unwrap_or(u32::MAX).to_be_bytes());
                page[FREE_PAGES].fill(0);
                let changes: [u8; 4] = page[CHANGES..CHANGES + 4].try_into().unwrap_or_default();
                page[PAGES_AS_OF..PAGES_AS_OF + 4].copy_from_slice(&changes);
            }
            file.seek(place)?;
            file.write_all(&page)?;
        }
        Ok(())
    }

    fn log(&self) -> PathBuf {
        beside(&self.0, "-wal")
    }

    fn remove(&self) {
        for end in ["", "-wal", "-shm"] {
            let _ = fs::remove_file(beside(&self.0, end));
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        self.remove();
    }
}
