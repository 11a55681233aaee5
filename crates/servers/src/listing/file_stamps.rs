//! Detects changes of files without reading them.

use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

/// The metadata of files that changes when a file is written, replaced or removed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct FileStamps(Vec<(PathBuf, Option<[i64; 6]>)>);

impl FileStamps {
    pub(super) fn of(files: &[PathBuf]) -> Self {
        let stamp = |path: &PathBuf| {
            let metadata = std::fs::metadata(path).ok()?;
            let (device, inode, size) =
                (metadata.dev().cast_signed(), metadata.ino().cast_signed(), metadata.size().cast_signed());
            Some([device, inode, size, metadata.mtime(), metadata.mtime_nsec(), metadata.ctime_nsec()])
        };
        Self(files.iter().map(|path| (path.clone(), stamp(path))).collect())
    }
}
