//! The directory of the state: ours alone.

use std::fs;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::Path;

use super::StoreError;

/// Makes the directory if it is not there. Session ids lie in it, so one that others may write is refused.
pub(super) fn prepare(path: &Path) -> Result<(), StoreError> {
    let failed = |source| StoreError::Directory { path: path.to_owned(), source };
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed)?;
    let found = fs::metadata(path).map_err(failed)?;
    if found.uid() != rustix::process::geteuid().as_raw() {
        return Err(StoreError::NotOurs { path: path.to_owned() });
    }
    let mode = found.mode() & 0o7777;
    if mode & 0o022 != 0 {
        return Err(StoreError::WritableByOthers { path: path.to_owned(), mode });
    }
    Ok(())
}
