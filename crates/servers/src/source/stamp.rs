//! Whether files have changed, without reading them.

use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

/// One of each file: what is different when it was written, replaced or removed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Stamps(Vec<(PathBuf, Option<[i64; 6]>)>);

impl Stamps {
    pub(super) fn of(files: &[PathBuf]) -> Self {
        let stamp = |path: &PathBuf| {
            let found = std::fs::metadata(path).ok()?;
            let (device, node, size) =
                (found.dev().cast_signed(), found.ino().cast_signed(), found.size().cast_signed());
            Some([device, node, size, found.mtime(), found.mtime_nsec(), found.ctime_nsec()])
        };
        Self(files.iter().map(|path| (path.clone(), stamp(path))).collect())
    }
}
