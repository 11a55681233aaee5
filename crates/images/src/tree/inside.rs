//! Paths of a layer.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use crate::bounds::PATH_BYTES;

/// A path within a root file system, by its parts: none is empty, `.` or `..`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Inside<'a>(Vec<&'a OsStr>);

impl<'a> Inside<'a> {
    /// An absolute path is meant from the root as well. One that goes up is refused, wherever it would lead.
    pub(crate) fn parse(path: &'a [u8]) -> Result<Self, &'static str> {
        if path.len() > PATH_BYTES {
            return Err("its path is too long");
        }
        let parts = path.split(|byte| *byte == b'/').filter(|part| !matches!(*part, b"" | b"."));
        let parts: Vec<&OsStr> = parts.map(OsStr::from_bytes).collect();
        if parts.iter().any(|part| *part == "..") {
            return Err("its path leaves the root");
        }
        Ok(Self(parts))
    }

    /// Its last part; the root has none.
    pub(crate) fn name(&self) -> Option<&'a OsStr> {
        self.0.last().copied()
    }

    pub(super) fn parents(&self) -> &[&'a OsStr] {
        self.0.split_last().map_or(&[], |(_, parents)| parents)
    }

    /// The directory that it lies in, from the root.
    pub(super) fn parent(&self) -> PathBuf {
        [Path::new(".")].into_iter().chain(self.parents().iter().map(Path::new)).collect()
    }

    /// Another name in the same directory.
    pub(crate) fn sibling(&self, name: &'a [u8]) -> Result<Self, &'static str> {
        if matches!(name, b"" | b"." | b"..") {
            return Err("it takes away no name");
        }
        let mut parts = self.0.clone();
        parts.pop();
        parts.push(OsStr::from_bytes(name));
        Ok(Self(parts))
    }
}
