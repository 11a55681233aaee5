//! Files for the host, opened with the guest's own rights.
//!
//! The path is walked name by name, because `openat2` carries its mode in memory and is refused to everyone behind the
//! walls. Each step holds a descriptor, follows no link and stays on the workspace's own file system: the guest may
//! rename and swap what it likes meanwhile, and moves nothing but its own files.

use std::collections::BinaryHeap;
use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{
    AtFlags, CWD, Dir, FallocateFlags, FileType, Mode, OFlags, fallocate, fstat, mkdirat, openat, statat,
};
use rustix::io::{Errno, Result, retry_on_intr};

use crate::files::{DirectoryEntry, FileAction, FileKind, FileReport, GuestPath};
use crate::frame::Channel;
use ringfence_core::WORKSPACE;

/// Entries a frame: with the longest names it stays far below the bound of one.
const ENTRIES_AT_ONCE: usize = 64;

const STEP: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A FIFO or a file under a lease must not make PID 1 wait.
const OPEN: OFlags = OFlags::NOFOLLOW.union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

/// Answers on the socket that came with the question. Whoever asked may be gone: then nobody needs the answer.
pub(super) fn answer(path: &[OsString], action: FileAction, passed: Vec<OwnedFd>) {
    let Some(answers) = passed.into_iter().next().map(Channel::from) else { return };
    let answered = match action {
        FileAction::Read => open(path, OFlags::RDONLY, Missing::Refuse)
            .and_then(|(file, workspace)| answers.send(&FileReport::Opened, &[file.as_fd(), workspace.as_fd()])),
        FileAction::Write { bytes } => open(path, OFlags::WRONLY | OFlags::CREATE, Missing::Make)
            .and_then(|opened| reserve(&opened.0, bytes).map(|()| opened))
            .and_then(|(file, workspace)| answers.send(&FileReport::Opened, &[file.as_fd(), workspace.as_fd()])),
        FileAction::List { most } => list(&answers, path, most as usize),
        FileAction::Measure => walk(path, Missing::Refuse)
            .and_then(|(workspace, _)| answers.send(&FileReport::Workspace, &[workspace.as_fd()])),
    };
    if let Err(errno) = answered {
        let _ = answers.send(&FileReport::Refused { errno: errno.raw_os_error() }, &[]);
    }
}

/// What becomes of directories that are not there.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Missing {
    Refuse,
    Make,
}

/// Gives the workspace and the directory at the end of the path.
fn walk(path: &[OsString], missing: Missing) -> Result<(OwnedFd, OwnedFd)> {
    if !path.iter().all(|name| GuestPath::is_name(name)) {
        return Err(Errno::INVAL);
    }
    let workspace = openat(CWD, WORKSPACE, STEP, Mode::empty())?;
    let device = fstat(&workspace)?.st_dev;
    let mut at = openat(&workspace, ".", STEP, Mode::empty())?;
    for name in path {
        let next = match openat(&at, name, STEP, Mode::empty()) {
            Err(Errno::NOENT) if missing == Missing::Make => {
                match mkdirat(&at, name, Mode::from_raw_mode(0o755)) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(errno) => return Err(errno),
                }
                openat(&at, name, STEP, Mode::empty())?
            }
            next => next?,
        };
        if fstat(&next)?.st_dev != device {
            return Err(Errno::XDEV);
        }
        at = next;
    }
    Ok((workspace, at))
}

fn open(path: &[OsString], flags: OFlags, missing: Missing) -> Result<(OwnedFd, OwnedFd)> {
    let (name, above) = path.split_last().ok_or(Errno::ISDIR)?;
    let (workspace, directory) = walk(above, missing)?;
    if !GuestPath::is_name(name) {
        return Err(Errno::INVAL);
    }
    let file = openat(&directory, name, flags | OPEN, Mode::from_raw_mode(0o644))?;
    Ok((file, workspace))
}

/// Pages belong to whoever is the first to need them, so it must not be the host who does. What is no file is refused
/// by the host.
fn reserve(file: &OwnedFd, bytes: u64) -> Result<()> {
    if bytes == 0 || FileType::from_raw_mode(fstat(file)?.st_mode) != FileType::RegularFile {
        return Ok(());
    }
    match retry_on_intr(|| fallocate(file, FallocateFlags::KEEP_SIZE, 0, bytes)) {
        // Not every file system can.
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
        reserved => reserved,
    }
}

/// More than a workspace has room for. While the init counts it does nothing else.
const MOST_COUNTED: u64 = 1 << 20;

/// Of a directory of any size the first names, in no more memory than they take.
fn list(answers: &Channel, path: &[OsString], most: usize) -> Result<()> {
    let (_, at) = walk(path, Missing::Refuse)?;
    let readable = openat(&at, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let mut first = BinaryHeap::new();
    let mut total = 0;
    for found in Dir::new(readable)? {
        let found = found?;
        if matches!(found.file_name().to_bytes(), b"." | b"..") {
            continue;
        }
        if total == MOST_COUNTED {
            break;
        }
        total += 1;
        first.push(found.file_name().to_owned());
        if first.len() > most {
            first.pop();
        }
    }
    let mut entries = Vec::new();
    for name in first {
        // It may be gone again.
        let Ok(stat) = statat(&at, &name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
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
        if entries.len() == ENTRIES_AT_ONCE {
            send(answers, &mut entries)?;
        }
    }
    send(answers, &mut entries)?;
    answers.send(&FileReport::End { total }, &[])
}

fn send(answers: &Channel, entries: &mut Vec<DirectoryEntry>) -> Result<()> {
    answers.send(&FileReport::Entries { entries: std::mem::take(entries) }, &[])
}
