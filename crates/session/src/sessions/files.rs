//! Transfers files into and out of a session, also while a call runs in it.
//!
//! The instance's init opens the files with the guest's permissions. This module enforces the limits: bytes, entries and
//! concurrent transfers.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use ringfence_backend::{DirectoryEntry, FileAccess, FileError, GuestPath, InstanceFiles};
use ringfence_core::{AuditKind, Failure, Kind, Principal, SessionId, WORKSPACE, bytes};
use tokio::time::timeout;

use super::{Sessions, events};
use crate::instances::ENVIRONMENT;
use crate::session::MAX_FILE_TRANSFERS;

/// Maximum number of bytes that one call reads or writes.
pub const MAX_FILE_BYTES: u64 = 16 << 20;

/// Maximum number of entries that one call lists.
pub const MAX_LISTED_ENTRIES: u32 = 1000;

/// Timeout for a request to the sandbox, and for the wait for a permit.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A part of a file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FileRange {
    pub offset: u64,
    /// `None` means to the end of the file.
    pub length: Option<u64>,
}

/// A file, or a part of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileContent {
    pub path: String,
    /// The size of the whole file.
    pub size: u64,
    pub offset: u64,
    pub bytes: Vec<u8>,
}

/// A file that was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileWritten {
    pub path: String,
    pub size: u64,
}

/// The entries of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Directory {
    pub path: String,
    pub entries: Vec<DirectoryEntry>,
    /// The number of entries that exist. Of more than [`MAX_LISTED_ENTRIES`], `entries` has the first by name.
    pub total: u64,
}

impl Sessions {
    /// Reads a file or a part of it.
    pub async fn read_file(
        &self,
        principal: &Principal,
        id: &SessionId,
        path: &OsStr,
        range: FileRange,
    ) -> Result<FileContent, Failure> {
        let transfer = self.transfer(principal, id, path, move |files, path| {
            let file = files.open(path, FileAccess::Read, TIMEOUT)?;
            let (size, bytes) = read(&file, range)?;
            Ok(FileContent { path: path.to_string(), size, offset: range.offset, bytes })
        });
        let content = transfer.await?;
        self.0.audit.record(events::transferred(AuditKind::FileRead, principal, id, content.bytes.len()));
        Ok(content)
    }

    /// Creates a file, or replaces its content.
    pub async fn write_file(
        &self,
        principal: &Principal,
        id: &SessionId,
        path: &OsStr,
        content: Vec<u8>,
    ) -> Result<FileWritten, Failure> {
        let size = content.len() as u64;
        if size > MAX_FILE_BYTES {
            let failure = too_large("the content", size).hint("create it in the sandbox, or write several files");
            return Err(self.refused(principal, Some(id), failure));
        }
        if [b"/".as_slice(), b"/."].iter().any(|end| path.as_encoded_bytes().ends_with(end)) {
            let failure = Failure::new(Kind::Validation, format!("{}: is the path of a directory", path.display()))
                .hint("use the path of a file in it; missing directories are created");
            return Err(self.refused(principal, Some(id), failure.with("field", "path")));
        }
        let length = content.len();
        let transfer = self.transfer(principal, id, path, move |files, path| {
            let mut file = files.open(path, FileAccess::Write { bytes: size }, TIMEOUT)?;
            replace(&mut file, &content).map_err(|error| TransferError::from(&error))?;
            Ok(FileWritten { path: path.to_string(), size })
        });
        let written = transfer.await?;
        self.0.audit.record(events::transferred(AuditKind::FileWritten, principal, id, length));
        Ok(written)
    }

    /// Lists a directory. A listing of the workspace leaves out the virtual environment.
    pub async fn list_files(&self, principal: &Principal, id: &SessionId, path: &OsStr) -> Result<Directory, Failure> {
        let transfer = self.transfer(principal, id, path, move |files, path| {
            let mut listing = files.list(path, MAX_LISTED_ENTRIES, TIMEOUT)?;
            if path.to_string() == WORKSPACE {
                let count = listing.entries.len();
                listing.entries.retain(|entry| entry.name != ENVIRONMENT.as_bytes());
                listing.total -= (count - listing.entries.len()) as u64;
            }
            Ok(Directory { path: path.to_string(), entries: listing.entries, total: listing.total })
        });
        let directory = transfer.await?;
        self.0.audit.record(events::transferred(AuditKind::FileRead, principal, id, 0));
        Ok(directory)
    }

    /// Runs a transfer on a blocking thread. Records a failure in the audit log.
    async fn transfer<T: Send + 'static>(
        &self,
        principal: &Principal,
        id: &SessionId,
        path: &OsStr,
        work: impl FnOnce(&InstanceFiles, &GuestPath) -> Result<T, TransferError> + Send + 'static,
    ) -> Result<T, Failure> {
        let transferred = self.try_transfer(principal, id, path, work).await;
        transferred.map_err(|failure| self.refused(principal, Some(id), failure))
    }

    async fn try_transfer<T: Send + 'static>(
        &self,
        principal: &Principal,
        id: &SessionId,
        path: &OsStr,
        work: impl FnOnce(&InstanceFiles, &GuestPath) -> Result<T, TransferError> + Send + 'static,
    ) -> Result<T, Failure> {
        let handle = self.find(principal, id)?;
        let path = GuestPath::parse(path).map_err(|error| {
            Failure::new(Kind::Validation, error.to_string())
                .hint("use a path relative to /workspace, or an absolute path beneath it")
                .with("field", "path")
        })?;
        let (files, permits) = (handle.instance.files.clone(), handle.instance.file_permits.clone());
        let permit = timeout(TIMEOUT, permits.acquire_owned()).await.ok().and_then(Result::ok).ok_or_else(|| {
            let message =
                format!("the session has reached its limit of {MAX_FILE_TRANSFERS} concurrent file transfers");
            Failure::new(Kind::ResourceLimit, message).hint("wait until they are done")
        })?;
        handle.state.touch();
        let shown = path.to_string();
        let transferred = self.tasks().spawn_blocking(move || {
            let _permit = permit;
            work(&files, &path)
        });
        match transferred.await.map_err(|error| Failure::new(Kind::Internal, error.to_string()))? {
            Ok(transferred) => Ok(transferred),
            Err(TransferError::TooLarge(failure)) => Err(failure.with("path", shown)),
            Err(TransferError::File(FileError::SandboxLost)) => Err(Failure::session_not_found(id)),
            Err(TransferError::File(error)) => Err(explain(&shown, &error)),
        }
    }
}

/// Replaces the content of a file. The space was reserved when it was opened, so this cannot fail halfway.
fn replace(file: &mut File, content: &[u8]) -> std::io::Result<()> {
    file.write_all(content)?;
    file.set_len(content.len() as u64)
}

enum TransferError {
    File(FileError),
    TooLarge(Failure),
}

impl From<FileError> for TransferError {
    fn from(error: FileError) -> Self {
        Self::File(error)
    }
}

impl From<&std::io::Error> for TransferError {
    fn from(error: &std::io::Error) -> Self {
        Self::File(rustix::io::Errno::from_io_error(error).unwrap_or(rustix::io::Errno::IO).into())
    }
}

fn read(file: &File, range: FileRange) -> Result<(u64, Vec<u8>), TransferError> {
    let size = file.metadata().map_err(|error| TransferError::from(&error))?.len();
    let rest = size.saturating_sub(range.offset);
    let requested = range.length.unwrap_or(rest).min(rest);
    if requested > MAX_FILE_BYTES {
        let failure = too_large("the requested part", requested).hint("read it in parts, with offset and length");
        return Err(TransferError::TooLarge(failure));
    }
    // The guest may change the file meanwhile, so the size is not trusted, and never more than the limit is read.
    let mut content = vec![0; usize::try_from(requested).unwrap_or(0)];
    let mut filled = 0;
    while filled < content.len() {
        match file.read_at(&mut content[filled..], range.offset + filled as u64) {
            Ok(0) => break,
            Ok(length) => filled += length,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(TransferError::from(&error)),
        }
    }
    content.truncate(filled);
    Ok((size, content))
}

fn too_large(what: &str, size: u64) -> Failure {
    let limit = bytes::format(MAX_FILE_BYTES);
    Failure::new(Kind::Validation, format!("{what} has {size} bytes, more than the limit of {limit}"))
        .with("limit", MAX_FILE_BYTES.to_string())
}

fn explain(path: &str, error: &FileError) -> Failure {
    let failure = |kind| Failure::new(kind, format!("{path}: {error}")).with("path", path);
    match error {
        FileError::NotFound => failure(Kind::NotFound).hint("list_files lists the files that exist"),
        FileError::IsADirectory => failure(Kind::Validation).hint("list_files lists its entries"),
        FileError::NotADirectory => {
            failure(Kind::Validation).hint("list_files of its parent directory shows the type of each entry")
        }
        FileError::NotAFile => failure(Kind::Validation).hint("read it in the sandbox, with execute_command"),
        FileError::OtherFileSystem => failure(Kind::Validation).hint("copy it into /workspace, with execute_command"),
        FileError::PermissionDenied => {
            failure(Kind::Validation).hint("change its mode in the sandbox, with execute_command")
        }
        FileError::SymbolicLink => failure(Kind::Validation).hint("use the path that the link points to"),
        FileError::WorkspaceFull => failure(Kind::ResourceLimit).hint("remove files from the workspace, or /tmp"),
        FileError::TimedOut => failure(Kind::Connection).hint("try again"),
        FileError::SandboxLost | FileError::System(_) => {
            failure(Kind::Validation).hint("inspect it with execute_command")
        }
    }
}
