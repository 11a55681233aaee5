//! The state directory: its permissions and the names of the files in it.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use crate::error::StoreError;

/// Name of the database in the state directory.
pub(crate) const DATABASE: &str = "ringfence.db";

/// Suffixes of the files that `SQLite` keeps beside a database. They must never be left beside another database of the
/// same name.
pub(crate) const SIDE_FILES: [&str; 3] = ["-wal", "-shm", "-journal"];

/// Creates the directory if it does not exist. It contains session ids, so one that other users may write is refused.
pub(crate) fn prepare(path: &Path) -> Result<(), StoreError> {
    let failed = |source| StoreError::Directory { path: path.to_owned(), source };
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed)?;
    let found = fs::metadata(path).map_err(failed)?;
    if found.uid() != rustix::process::geteuid().as_raw() {
        return Err(StoreError::OwnedByOther { path: path.to_owned() });
    }
    let mode = found.mode() & 0o7777;
    if mode & 0o022 != 0 {
        return Err(StoreError::WritableByOthers { path: path.to_owned(), mode });
    }
    Ok(())
}

/// Appends a suffix to the file name of a path.
pub(crate) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Returns the length of a file, and zero if there is none.
pub(crate) fn length(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |found| found.len())
}

/// Removes a file; one that does not exist is no error.
pub(crate) fn remove_if_exists(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Removes a database that is not in use, with the files that `SQLite` keeps beside it.
pub(crate) fn remove_database(path: &Path) -> io::Result<()> {
    SIDE_FILES.iter().try_for_each(|suffix| remove_if_exists(&with_suffix(path, suffix)))?;
    remove_if_exists(path)
}

/// Makes renames in the directory of this file durable.
pub(crate) fn sync_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), |directory| File::open(directory)?.sync_all())
}
