//! Reads and writes files of a running sandbox from the host.
//!
//! The init opens each file with the guest's permissions and passes the descriptor; the host never resolves a path of
//! the guest. A guest can replace a name at any moment, so the host checks the descriptor: it must be a regular file on
//! the file system of the workspace. Every wait has a deadline.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::{FileType, fstat, fstatvfs};
use rustix::io::Errno;

use super::Control;
use crate::error::Error;
use crate::guest_path::GuestPath;
use crate::protocol::{Channel, DirectoryEntry, FileAction, FileReport, InitRequest, errno_from_wire};

/// The reason why a file of a sandbox could not be opened. The messages follow the path: "/workspace/a: …".
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum FileError {
    #[error("no such file or directory")]
    NotFound,
    #[error("is a symbolic link, and links are not followed")]
    SymbolicLink,
    #[error("is not a directory, or has a parent that is not a directory; links are not followed")]
    NotADirectory,
    #[error("is a directory")]
    IsADirectory,
    #[error("is neither a regular file nor a directory")]
    NotAFile,
    #[error("is on another file system than the workspace")]
    OtherFileSystem,
    #[error("permission denied, as for the guest itself")]
    PermissionDenied,
    #[error("the workspace is full")]
    WorkspaceFull,
    #[error("the sandbox did not respond in time")]
    TimedOut,
    #[error("the sandbox has ended")]
    SandboxLost,
    #[error("system call failed: {0}")]
    System(Errno),
}

impl From<Errno> for FileError {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::NOENT => Self::NotFound,
            Errno::LOOP => Self::SymbolicLink,
            Errno::NOTDIR => Self::NotADirectory,
            Errno::ISDIR => Self::IsADirectory,
            // A socket, or a FIFO without a reader.
            Errno::NXIO => Self::NotAFile,
            Errno::XDEV => Self::OtherFileSystem,
            Errno::ACCESS | Errno::PERM => Self::PermissionDenied,
            Errno::NOSPC | Errno::DQUOT => Self::WorkspaceFull,
            errno => Self::System(errno),
        }
    }
}

/// The purpose for which a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileAccess {
    Read,
    /// The file and its parent directories are created if they do not exist. An existing file is not truncated. This
    /// many bytes are reserved, and charged to the guest's memory instead of the writer's.
    Write {
        bytes: u64,
    },
}

/// The entries of a directory: the first ones, by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    pub entries: Vec<DirectoryEntry>,
    /// The number of entries that the directory has.
    pub total: u64,
}

/// The space that the guest uses outside of its volumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkspaceUsage {
    pub bytes: u64,
    pub inodes: u64,
}

impl Control {
    /// Opens a regular file beneath the workspace with the guest's permissions. Blocks, at most for `timeout`.
    pub fn open_file(&self, path: &GuestPath, access: FileAccess, timeout: Duration) -> Result<File, FileError> {
        let action = match access {
            FileAccess::Read => FileAction::Read,
            FileAccess::Write { bytes } => FileAction::Write { bytes },
        };
        self.request_file(path, action, timeout)?.opened_file()
    }

    /// Lists a directory beneath the workspace with the guest's permissions. Blocks, at most for `timeout`.
    pub fn list_directory(&self, path: &GuestPath, max_entries: u32, timeout: Duration) -> Result<Listing, FileError> {
        self.request_file(path, FileAction::List { max_entries }, timeout)?.listing(max_entries)
    }

    /// Requests the usage of the workspace. Does not block; the deadline for the reply is `timeout` from now.
    pub fn measure_workspace(&self, timeout: Duration) -> Result<PendingWorkspaceUsage, FileError> {
        self.request_file(&GuestPath::workspace(), FileAction::Measure, timeout).map(PendingWorkspaceUsage)
    }

    /// Sends a request with a separate socket for the reply, so that concurrent requests cannot mix up their replies.
    fn request_file(&self, path: &GuestPath, action: FileAction, timeout: Duration) -> Result<PendingReply, FileError> {
        let (ours, theirs) = Channel::pair()?;
        let request = InitRequest::File { path: path.components().to_vec(), action };
        self.send_request(&request, &[theirs.as_fd()]).map_err(|error| match error {
            Error::SandboxBusy => FileError::TimedOut,
            _ => FileError::SandboxLost,
        })?;
        Ok(PendingReply { channel: ours, deadline: Instant::now() + timeout })
    }
}

/// A request for the usage of the workspace whose reply has not been read.
pub struct PendingWorkspaceUsage(pub(super) PendingReply);

impl PendingWorkspaceUsage {
    /// Waits for the reply. Blocks until the deadline of the request.
    pub fn finish(self) -> Result<WorkspaceUsage, FileError> {
        let (FileReport::Workspace, passed) = self.0.next()? else { return Err(FileError::SandboxLost) };
        let found = fstatvfs(passed.first().ok_or(FileError::SandboxLost)?)?;
        Ok(WorkspaceUsage {
            bytes: found.f_blocks.saturating_sub(found.f_bfree).saturating_mul(found.f_frsize),
            inodes: found.f_files.saturating_sub(found.f_ffree),
        })
    }
}

/// A file request whose reply has not been read. Any reply that the protocol does not allow counts as the loss of the
/// sandbox.
pub(super) struct PendingReply {
    pub(super) channel: Channel,
    pub(super) deadline: Instant,
}

impl PendingReply {
    pub(super) fn opened_file(&self) -> Result<File, FileError> {
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

    pub(super) fn listing(&self, max_entries: u32) -> Result<Listing, FileError> {
        let mut entries: Vec<DirectoryEntry> = Vec::new();
        let total = loop {
            match self.next()?.0 {
                FileReport::Entries { entries: next } if entries.len() + next.len() <= max_entries as usize => {
                    entries.extend(next);
                }
                FileReport::End { total } => break total,
                _ => return Err(FileError::SandboxLost),
            }
        };
        entries.sort_by(|left, right| left.name.cmp(&right.name));
        Ok(Listing { entries, total })
    }

    pub(super) fn next(&self) -> Result<(FileReport, Vec<OwnedFd>), FileError> {
        match self.channel.receive_with_deadline(Some(self.deadline)) {
            Ok(Some((FileReport::Refused { errno }, _))) => Err(errno_from_wire(errno).into()),
            Ok(Some(report)) => Ok(report),
            Err(Errno::TIMEDOUT) => Err(FileError::TimedOut),
            Ok(None) | Err(_) => Err(FileError::SandboxLost),
        }
    }
}
