//! Removes what is in the way of a layer, or hidden by it. No link is followed.

use std::cell::Cell;
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;

use rustix::fs::{AtFlags, Dir, FileType, Mode, openat, statat, unlinkat};
use rustix::io::{Errno, Result};

use super::DIRECTORY;

/// Inodes that stay, and with them the directories that they lie in; and how much more may be looked at.
#[derive(Clone, Copy)]
pub(super) struct Spared<'a> {
    pub(super) inodes: Option<&'a HashSet<u64>>,
    pub(super) visits_left: &'a Cell<u64>,
}

impl Spared<'_> {
    fn has(self, inode: u64) -> bool {
        self.inodes.is_some_and(|spared| spared.contains(&inode))
    }

    fn visit(self) -> Result<()> {
        self.visits_left.set(self.visits_left.get().checked_sub(1).ok_or(Errno::TOOBIG)?);
        Ok(())
    }
}

/// Removes what has this name, with all that is in it. The tree is not deeper than [`super::DEPTH`].
pub(super) fn remove(parent: BorrowedFd<'_>, name: &OsStr, spared: Spared<'_>) -> Result<()> {
    spared.visit()?;
    let stat = match statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => return Ok(()),
        stat => stat?,
    };
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        return if spared.has(stat.st_ino) { Ok(()) } else { unlinkat(parent, name, AtFlags::empty()) };
    }
    empty(&openat(parent, name, DIRECTORY, Mode::empty())?, spared)?;
    if spared.has(stat.st_ino) {
        return Ok(());
    }
    match unlinkat(parent, name, AtFlags::REMOVEDIR) {
        Err(Errno::NOTEMPTY) if spared.inodes.is_some() => Ok(()),
        removed => removed,
    }
}

/// Removes all that is in a directory.
pub(super) fn empty(directory: &OwnedFd, spared: Spared<'_>) -> Result<()> {
    names(directory)?.iter().try_for_each(|name| remove(directory.as_fd(), name, spared))
}

pub(super) fn names(directory: &OwnedFd) -> Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let name = OsString::from_vec(entry?.file_name().to_bytes().to_vec());
        if name != "." && name != ".." {
            names.push(name);
        }
    }
    Ok(names)
}
