//! Files of a running sandbox, for the host.
//!
//! The init opens them with the guest's own rights and passes the descriptor; the host never resolves a path of the
//! guest's. What it gets is checked by what it *is*, because names can be swapped at any moment: a regular file on the
//! workspace's own file system. All waits have a deadline.

#[cfg(fuzzing)]
pub mod fuzzing;
mod path;
mod report;

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::{FileType, fstat, fstatvfs};
use rustix::io::Errno;

use crate::control::Control;
use crate::error::Error;
use crate::frame::{Channel, Order};
use crate::launch::errno_of;

pub use path::{GuestPath, PathError};
pub use report::{DirectoryEntry, FileKind};
pub(crate) use report::{FileAction, FileReport};

/// Why a file of the guest's was not to be had.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum FileError {
    #[error("there is no such file or directory")]
    NotFound,
    #[error("it is a symbolic link, and links are not followed")]
    SymbolicLink,
    #[error("it, or a part of the path to it, is not a directory; links are not followed")]
    NotADirectory,
    #[error("it is a directory")]
    IsADirectory,
    #[error("it is neither a regular file nor a directory")]
    NotAFile,
    #[error("it lies on another file system than the workspace")]
    OtherFileSystem,
    #[error("the guest itself has no right to it")]
    PermissionDenied,
    #[error("the workspace is full")]
    WorkspaceFull,
    #[error("the sandbox did not answer in time")]
    TimedOut,
    #[error("the sandbox is gone")]
    SandboxLost,
    #[error("the system refused: {0}")]
    System(Errno),
}

impl From<Errno> for FileError {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::NOENT => Self::NotFound,
            Errno::LOOP => Self::SymbolicLink,
            Errno::NOTDIR => Self::NotADirectory,
            Errno::ISDIR => Self::IsADirectory,
            // A socket, or a FIFO that nobody reads.
            Errno::NXIO => Self::NotAFile,
            Errno::XDEV => Self::OtherFileSystem,
            Errno::ACCESS | Errno::PERM => Self::PermissionDenied,
            Errno::NOSPC | Errno::DQUOT => Self::WorkspaceFull,
            errno => Self::System(errno),
        }
    }
}

/// What a file is opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileAccess {
    Read,
    /// Made where it is missing, with the directories above it; not emptied. There is room in it for as many bytes,
    /// which count as the guest's memory, and not as that of whoever writes.
    Write {
        bytes: u64,
    },
}

/// What is in a directory: the first by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    pub entries: Vec<DirectoryEntry>,
    /// How many there are.
    pub total: u64,
}

/// What the guest has written, outside its volumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkspaceUsage {
    pub bytes: u64,
    pub inodes: u64,
}

impl Control {
    /// Opens a regular file beneath the workspace, as the guest. Blocks, at most for `patience`.
    pub fn open_file(&self, path: &GuestPath, access: FileAccess, patience: Duration) -> Result<File, FileError> {
        let action = match access {
            FileAccess::Read => FileAction::Read,
            FileAccess::Write { bytes } => FileAction::Write { bytes },
        };
        self.ask(path, action, patience)?.opened()
    }

    /// Lists a directory beneath the workspace, as the guest. Blocks, at most for `patience`.
    pub fn list_directory(&self, path: &GuestPath, most: u32, patience: Duration) -> Result<Listing, FileError> {
        self.ask(path, FileAction::List { most }, patience)?.listing(most)
    }

    /// Asks how full the workspace is. Does not block; the answer is waited for, at most for `patience` from now.
    pub fn measure_workspace(&self, patience: Duration) -> Result<PendingWorkspaceUsage, FileError> {
        self.ask(&GuestPath::workspace(), FileAction::Measure, patience).map(PendingWorkspaceUsage)
    }

    /// Every question has a socket of its own for the answer, so that nobody else's wait can take it.
    fn ask(&self, path: &GuestPath, action: FileAction, patience: Duration) -> Result<Conversation, FileError> {
        let (ours, theirs) = Channel::pair()?;
        let order = Order::File { path: path.components().to_vec(), action };
        self.order(&order, &[theirs.as_fd()]).map_err(|error| match error {
            Error::SandboxBusy => FileError::TimedOut,
            _ => FileError::SandboxLost,
        })?;
        Ok(Conversation { answers: ours, deadline: Instant::now() + patience })
    }
}

/// A question on its way.
pub struct PendingWorkspaceUsage(Conversation);

impl PendingWorkspaceUsage {
    /// Blocks until it is answered.
    pub fn finish(self) -> Result<WorkspaceUsage, FileError> {
        let (FileReport::Workspace, passed) = self.0.next()? else { return Err(FileError::SandboxLost) };
        let found = fstatvfs(passed.first().ok_or(FileError::SandboxLost)?)?;
        Ok(WorkspaceUsage {
            bytes: found.f_blocks.saturating_sub(found.f_bfree).saturating_mul(found.f_frsize),
            inodes: found.f_files.saturating_sub(found.f_ffree),
        })
    }
}

struct Conversation {
    answers: Channel,
    deadline: Instant,
}

impl Conversation {
    fn opened(&self) -> Result<File, FileError> {
        let (FileReport::Opened, passed) = self.next()? else { return Err(FileError::SandboxLost) };
        let [file, workspace] = <[OwnedFd; 2]>::try_from(passed).map_err(|_| FileError::SandboxLost)?;
        let (found, expected) = (fstat(&file)?, fstat(&workspace)?);
        match FileType::from_raw_mode(found.st_mode) {
            FileType::RegularFile if found.st_dev == expected.st_dev => Ok(File::from(file)),
            FileType::RegularFile => Err(FileError::OtherFileSystem),
            FileType::Directory => Err(FileError::IsADirectory),
            _ => Err(FileError::NotAFile),
        }
    }

    fn listing(&self, most: u32) -> Result<Listing, FileError> {
        let mut entries: Vec<DirectoryEntry> = Vec::new();
        let total = loop {
            match self.next()?.0 {
                FileReport::Entries { entries: next } if entries.len() + next.len() <= most as usize => {
                    entries.extend(next);
                }
                FileReport::End { total } => break total,
                _ => return Err(FileError::SandboxLost),
            }
        };
        entries.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(Listing { entries, total })
    }

    fn next(&self) -> Result<(FileReport, Vec<OwnedFd>), FileError> {
        match self.answers.receive_by(Some(self.deadline)) {
            Ok(Some((FileReport::Refused { errno }, _))) => Err(errno_of(errno).into()),
            Ok(Some(report)) => Ok(report),
            Err(Errno::TIMEDOUT) => Err(FileError::TimedOut),
            Ok(None) | Err(_) => Err(FileError::SandboxLost),
        }
    }
}
