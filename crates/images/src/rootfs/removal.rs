//! Removal of files that a layer replaces or hides. Links are not followed.

use std::cell::Cell;
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;

use rustix::fs::{AtFlags, Dir, FileType, Mode, openat, statat, unlinkat};
use rustix::io::{Errno, Result};

use super::OPEN_DIRECTORY;

/// Options of a removal.
#[derive(Clone, Copy)]
pub(super) struct RemovalOptions<'a> {
    /// Inodes that must stay, with the directories that contain them.
    pub(super) retained_inodes: Option<&'a HashSet<u64>>,
    /// Number of names that may still be inspected.
    pub(super) visits_left: &'a Cell<u64>,
}

impl RemovalOptions<'_> {
    fn retains(self, inode: u64) -> bool {
        self.retained_inodes.is_some_and(|inodes| inodes.contains(&inode))
    }

    fn count_visit(self) -> Result<()> {
        self.visits_left.set(self.visits_left.get().checked_sub(1).ok_or(Errno::TOOBIG)?);
        Ok(())
    }
}

/// Removes the file or directory tree with this name. Recursion is limited by [`crate::limits::MAX_DEPTH`].
pub(super) fn remove(parent: BorrowedFd<'_>, name: &OsStr, options: RemovalOptions<'_>) -> Result<()> {
    options.count_visit()?;
    let stat = match statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => return Ok(()),
        stat => stat?,
    };
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        return if options.retains(stat.st_ino) { Ok(()) } else { unlinkat(parent, name, AtFlags::empty()) };
    }
    remove_contents(&openat(parent, name, OPEN_DIRECTORY, Mode::empty())?, options)?;
    if options.retains(stat.st_ino) {
        return Ok(());
    }
    match unlinkat(parent, name, AtFlags::REMOVEDIR) {
        Err(Errno::NOTEMPTY) if options.retained_inodes.is_some() => Ok(()),
        removed => removed,
    }
}

/// Removes everything in a directory.
pub(super) fn remove_contents(directory: &OwnedFd, options: RemovalOptions<'_>) -> Result<()> {
    list_names(directory)?.iter().try_for_each(|name| remove(directory.as_fd(), name, options))
}

/// Lists the names in a directory, without `.` and `..`.
pub(super) fn list_names(directory: &OwnedFd) -> Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let name = OsString::from_vec(entry?.file_name().to_bytes().to_vec());
        if name != "." && name != ".." {
            names.push(name);
        }
    }
    Ok(names)
}
