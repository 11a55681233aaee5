//! Files moved in and out of a session, also while a call runs in it.
//!
//! Everything about them is decided by the sandbox's init and by what its descriptors turn out to be; here are the
//! limits: bytes, entries, transfers at a time.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::time::Duration;

use ringfence_backend::{Control, DirectoryEntry, FileAccess, FileError, GuestPath};
use ringfence_core::bytes;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::{Sessions, events};
use ringfence_core::AuditKind;
use ringfence_core::{Failure, Kind, Principal, SessionId};

/// What one call reads or writes at most.
pub const MOST_FILE_BYTES: u64 = 16 << 20;

/// What one call lists at most.
pub const MOST_ENTRIES: u32 = 1000;

/// How long the sandbox may take for one question, and a transfer wait for its turn.
const PATIENCE: Duration = Duration::from_secs(10);

/// Each holds its bytes in memory.
const TRANSFERS_AT_ONCE: usize = 4;

/// Which part of a file is wanted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FileRange {
    pub offset: u64,
    /// To the end of the file if none is given.
    pub length: Option<u64>,
}

/// A file, or a part of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileContent {
    pub path: String,
    /// Of the whole file.
    pub size: u64,
    pub offset: u64,
    pub bytes: Vec<u8>,
}

/// What was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileWritten {
    pub path: String,
    pub size: u64,
}

/// What is in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Directory {
    pub path: String,
    pub entries: Vec<DirectoryEntry>,
    /// How many there are; of more than [`MOST_ENTRIES`], `entries` has the first by name.
    pub total: u64,
}

/// A session's way to its files.
#[derive(Clone)]
pub(crate) struct Files {
    control: Arc<Control>,
    turns: Arc<Semaphore>,
}

impl Files {
    pub(crate) fn new(control: Arc<Control>) -> Self {
        Self { control, turns: Arc::new(Semaphore::new(TRANSFERS_AT_ONCE)) }
    }
}

impl Sessions {
    pub async fn read_file(
        &self,
        principal: &Principal,
        id: &SessionId,
        path: &OsStr,
        range: FileRange,
    ) -> Result<FileContent, Failure> {
        let reading = self.transfer(principal, id, path, move |control, path| {
            let file = control.open_file(path, FileAccess::Read, PATIENCE)?;
            let (size, bytes) = read(&file, range)?;
            Ok(FileContent { path: path.to_string(), size, offset: range.offset, bytes })
        });
        let content = reading.await?;
        self.0.audit.record(events::moved(AuditKind::FileRead, principal, id, content.bytes.len()));
        Ok(content)
    }

    /// Makes the file, or replaces what is in it.
    pub async fn write_file(
        &self,
        principal: &Principal,
        id: &SessionId,
        path: &OsStr,
        content: Vec<u8>,
    ) -> Result<FileWritten, Failure> {
        let size = content.len() as u64;
        if size > MOST_FILE_BYTES {
            let failure = too_large("the content", size).hint("write it in the sandbox, or in several files");
            return Err(self.refused(principal, Some(id), failure));
        }
        if [b"/".as_slice(), b"/."].iter().any(|end| path.as_encoded_bytes().ends_with(end)) {
            let failure = Failure::new(Kind::Validation, format!("{}: it names a directory", path.display()))
                .hint("name a file in it; directories that are missing are made");
            return Err(self.refused(principal, Some(id), failure.with("field", "path")));
        }
        let length = content.len();
        let writing = self.transfer(principal, id, path, move |control, path| {
            let mut file = control.open_file(path, FileAccess::Write { bytes: size }, PATIENCE)?;
            replace(&mut file, &content).map_err(|error| TransferError::from(&error))?;
            Ok(FileWritten { path: path.to_string(), size })
        });
        let written = writing.await?;
        self.0.audit.record(events::moved(AuditKind::FileWritten, principal, id, length));
        Ok(written)
    }

    pub async fn list_files(&self, principal: &Principal, id: &SessionId, path: &OsStr) -> Result<Directory, Failure> {
        let listing = self.transfer(principal, id, path, move |control, path| {
            let listing = control.list_directory(path, MOST_ENTRIES, PATIENCE)?;
            Ok(Directory { path: path.to_string(), entries: listing.entries, total: listing.total })
        });
        let directory = listing.await?;
        self.0.audit.record(events::moved(AuditKind::FileRead, principal, id, 0));
        Ok(directory)
    }

    /// Does something with a file on a thread that may wait; a refusal is told.
    async fn transfer<T: Send + 'static>(
        &self,
        principal: &Principal,
        id: &SessionId,
        path: &OsStr,
        work: impl FnOnce(&Control, &GuestPath) -> Result<T, TransferError> + Send + 'static,
    ) -> Result<T, Failure> {
        let moved = self.try_transfer(principal, id, path, work).await;
        moved.map_err(|failure| self.refused(principal, Some(id), failure))
    }

    async fn try_transfer<T: Send + 'static>(
        &self,
        principal: &Principal,
        id: &SessionId,
        path: &OsStr,
        work: impl FnOnce(&Control, &GuestPath) -> Result<T, TransferError> + Send + 'static,
    ) -> Result<T, Failure> {
        let handle = self.find(principal, id)?;
        let path = GuestPath::parse(path).map_err(|error| {
            Failure::new(Kind::Validation, error.to_string())
                .hint("name a file relative to /workspace, or by its full path beneath it")
                .with("field", "path")
        })?;
        let Files { control, turns } = handle.files.clone();
        let turn = timeout(PATIENCE, turns.acquire_owned()).await.ok().and_then(Result::ok).ok_or_else(|| {
            Failure::new(Kind::ResourceLimit, format!("{TRANSFERS_AT_ONCE} files of this session are being moved"))
                .hint("wait until they are done")
        })?;
        handle.shared.touch();
        let shown = path.to_string();
        let moved = self.tasks().spawn_blocking(move || {
            let _turn = turn;
            work(&control, &path)
        });
        match moved.await.map_err(|error| Failure::new(Kind::Internal, error.to_string()))? {
            Ok(moved) => Ok(moved),
            Err(TransferError::TooLarge(failure)) => Err(failure.with("path", shown)),
            Err(TransferError::File(FileError::SandboxLost)) => Err(Failure::session_not_found(id)),
            Err(TransferError::File(error)) => Err(explain(&shown, &error)),
        }
    }
}

/// Replaces what is in a file. There is room for all of it already, or it would not have been opened: it is left as it
/// was, or becomes what it should.
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
    let wanted = range.length.unwrap_or(rest).min(rest);
    if wanted > MOST_FILE_BYTES {
        let failure = too_large("what is to be read", wanted).hint("read it in parts, with offset and length");
        return Err(TransferError::TooLarge(failure));
    }
    // The guest may change it meanwhile: neither more than the limit is read, nor is the size believed.
    let mut content = vec![0; usize::try_from(wanted).unwrap_or(0)];
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
    let most = bytes::format(MOST_FILE_BYTES);
    Failure::new(Kind::Validation, format!("{what} has {size} bytes, more than the limit of {most}"))
        .with("limit", MOST_FILE_BYTES.to_string())
}

fn explain(path: &str, error: &FileError) -> Failure {
    let failure = |kind| Failure::new(kind, format!("{path}: {error}")).with("path", path);
    match error {
        FileError::NotFound => failure(Kind::NotFound).hint("list_files shows what is there"),
        FileError::IsADirectory => failure(Kind::Validation).hint("list_files shows what is in it"),
        FileError::NotADirectory => {
            failure(Kind::Validation).hint("list_files of the directory above shows what it is")
        }
        FileError::NotAFile => failure(Kind::Validation).hint("read it in the sandbox, with execute_command"),
        FileError::OtherFileSystem => failure(Kind::Validation).hint("copy it into /workspace, with execute_command"),
        FileError::PermissionDenied => {
            failure(Kind::Validation).hint("change its mode in the sandbox, with execute_command")
        }
        FileError::SymbolicLink => failure(Kind::Validation).hint("name the file that the link points to"),
        FileError::WorkspaceFull => failure(Kind::ResourceLimit).hint("remove files from the workspace, or /tmp"),
        FileError::TimedOut => failure(Kind::Connection).hint("try again"),
        FileError::SandboxLost | FileError::System(_) => {
            failure(Kind::Validation).hint("look at it with execute_command")
        }
    }
}
