//! Paths of layer entries.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use crate::limits::MAX_PATH_BYTES;

/// The components of a path within a root file system. No component is empty, `.` or `..`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EntryPath<'a>(Vec<&'a OsStr>);

impl<'a> EntryPath<'a> {
    /// Parses a path. Absolute paths start at the root file system too. Every `..` is refused, wherever it would lead.
    pub(crate) fn parse(path: &'a [u8]) -> Result<Self, &'static str> {
        if path.len() > MAX_PATH_BYTES {
            return Err("the path is too long");
        }
        let parts = path.split(|byte| *byte == b'/').filter(|part| !matches!(*part, b"" | b"."));
        let parts: Vec<&OsStr> = parts.map(OsStr::from_bytes).collect();
        if parts.iter().any(|part| *part == "..") {
            return Err("the path contains `..`");
        }
        Ok(Self(parts))
    }

    /// Returns the last component; `None` for the root.
    pub(crate) fn name(&self) -> Option<&'a OsStr> {
        self.0.last().copied()
    }

    /// Returns the components of the parent directory.
    pub(super) fn parents(&self) -> &[&'a OsStr] {
        self.0.split_last().map_or(&[], |(_, parents)| parents)
    }

    /// Returns the path of the parent directory, relative to the root.
    pub(super) fn parent(&self) -> PathBuf {
        [Path::new(".")].into_iter().chain(self.parents().iter().map(Path::new)).collect()
    }

    /// Returns the path of another name in the same directory.
    pub(crate) fn sibling(&self, name: &'a [u8]) -> Result<Self, &'static str> {
        if matches!(name, b"" | b"." | b"..") {
            return Err("the whiteout names no file");
        }
        let mut parts = self.0.clone();
        parts.pop();
        parts.push(OsStr::from_bytes(name));
        Ok(Self(parts))
    }
}
