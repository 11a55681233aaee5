//! Opens and lists files for the host, with the guest's permissions.
//!
//! Paths are resolved name by name, because the seccomp filter denies `openat2` (it cannot see the mode). Each step has
//! an open descriptor, follows no link and stays on the file system of the workspace. So if the guest renames or swaps
//! files meanwhile, the host still reaches nothing but the guest's files.

use std::collections::BinaryHeap;
use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{
    AtFlags, CWD, Dir, FallocateFlags, FileType, Mode, OFlags, fallocate, fstat, mkdirat, openat, statat,
};
use rustix::io::{Errno, Result, retry_on_intr};

use crate::guest_path::GuestPath;
use crate::protocol::{Channel, DirectoryEntry, FileAction, FileKind, FileReport};
use ringfence_core::WORKSPACE;

/// Maximum number of entries in a frame, which stays far below the maximum length even with the longest names.
const MAX_FRAME_ENTRIES: usize = 64;

/// Flags to open a directory on the path.
const DIRECTORY_FLAGS: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Flags to open a file. A FIFO, or a file with a lease, must not block PID 1.
const FILE_FLAGS: OFlags = OFlags::NOFOLLOW.union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

/// Handles a request, and replies on the socket that came with it. A failed reply is ignored: the requester has ended.
pub(super) fn handle(path: &[OsString], action: FileAction, passed: Vec<OwnedFd>) {
    let Some(replies) = passed.into_iter().next().map(Channel::from) else { return };
    let result = match action {
        FileAction::Read => open(path, OFlags::RDONLY, Missing::Refuse)
            .and_then(|(file, workspace)| replies.send(&FileReport::Opened, &[file.as_fd(), workspace.as_fd()])),
        FileAction::Write { bytes } => open(path, OFlags::WRONLY | OFlags::CREATE, Missing::Create)
            .and_then(|opened| reserve(&opened.0, bytes).map(|()| opened))
            .and_then(|(file, workspace)| replies.send(&FileReport::Opened, &[file.as_fd(), workspace.as_fd()])),
        FileAction::List { max_entries } => list(&replies, path, max_entries as usize),
        FileAction::Measure => open_directory(path, Missing::Refuse)
            .and_then(|(workspace, _)| replies.send(&FileReport::Workspace, &[workspace.as_fd()])),
    };
    if let Err(errno) = result {
        let _ = replies.send(&FileReport::Refused { errno: errno.raw_os_error() }, &[]);
    }
}

/// The action for directories that do not exist.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Missing {
    Refuse,
    Create,
}

/// Opens the workspace, and the directory at the end of the path.
fn open_directory(path: &[OsString], missing: Missing) -> Result<(OwnedFd, OwnedFd)> {
    if !path.iter().all(|name| GuestPath::is_name(name)) {
        return Err(Errno::INVAL);
    }
    let workspace = openat(CWD, WORKSPACE, DIRECTORY_FLAGS, Mode::empty())?;
    let device = fstat(&workspace)?.st_dev;
    let mut directory = openat(&workspace, ".", DIRECTORY_FLAGS, Mode::empty())?;
    for name in path {
        let next = match openat(&directory, name, DIRECTORY_FLAGS, Mode::empty()) {
            Err(Errno::NOENT) if missing == Missing::Create => {
                match mkdirat(&directory, name, Mode::from_raw_mode(0o755)) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(errno) => return Err(errno),
                }
                openat(&directory, name, DIRECTORY_FLAGS, Mode::empty())?
            }
            next => next?,
        };
        if fstat(&next)?.st_dev != device {
            return Err(Errno::XDEV);
        }
        directory = next;
    }
    Ok((workspace, directory))
}

/// Opens a file. Returns it with the workspace.
fn open(path: &[OsString], flags: OFlags, missing: Missing) -> Result<(OwnedFd, OwnedFd)> {
    let (name, parents) = path.split_last().ok_or(Errno::ISDIR)?;
    let (workspace, directory) = open_directory(parents, missing)?;
    if !GuestPath::is_name(name) {
        return Err(Errno::INVAL);
    }
    let file = openat(&directory, name, flags | FILE_FLAGS, Mode::from_raw_mode(0o644))?;
    Ok((file, workspace))
}

/// Reserves space for a file. Pages are charged to the process that first needs them, which must not be the host.
/// Anything but a regular file is left to the host, which refuses it.
fn reserve(file: &OwnedFd, bytes: u64) -> Result<()> {
    if bytes == 0 || FileType::from_raw_mode(fstat(file)?.st_mode) != FileType::RegularFile {
        return Ok(());
    }
    match retry_on_intr(|| fallocate(file, FallocateFlags::KEEP_SIZE, 0, bytes)) {
        // Not supported by every file system.
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
        reserved => reserved,
    }
}

/// Maximum number of entries to count, more than a workspace can have. The init handles nothing else meanwhile.
const MAX_COUNTED: u64 = 1 << 20;

/// Lists the first entries of a directory, by name. The memory depends on `max_entries`, not on the directory's size.
fn list(replies: &Channel, path: &[OsString], max_entries: usize) -> Result<()> {
    let (_, directory) = open_directory(path, Missing::Refuse)?;
    let readable = openat(&directory, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let mut first_names = BinaryHeap::new();
    let mut total = 0;
    for entry in Dir::new(readable)? {
        let entry = entry?;
        if matches!(entry.file_name().to_bytes(), b"." | b"..") {
            continue;
        }
        if total == MAX_COUNTED {
            break;
        }
        total += 1;
        first_names.push(entry.file_name().to_owned());
        if first_names.len() > max_entries {
            first_names.pop();
        }
    }
    let mut entries = Vec::new();
    for name in first_names {
        // The file may have been removed meanwhile.
        let Ok(stat) = statat(&directory, &name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
        entries.push(DirectoryEntry {
            name: name.into_bytes(),
            kind: match FileType::from_raw_mode(stat.st_mode) {
                FileType::RegularFile => FileKind::File,
                FileType::Directory => FileKind::Directory,
                FileType::Symlink => FileKind::Link,
                _ => FileKind::Other,
            },
            size: u64::try_from(stat.st_size).unwrap_or(0),
            modified: stat.st_mtime,
        });
        if entries.len() == MAX_FRAME_ENTRIES {
            send_entries(replies, &mut entries)?;
        }
    }
    send_entries(replies, &mut entries)?;
    replies.send(&FileReport::End { total }, &[])
}

fn send_entries(replies: &Channel, entries: &mut Vec<DirectoryEntry>) -> Result<()> {
    replies.send(&FileReport::Entries { entries: std::mem::take(entries) }, &[])
}
