//! File locks between the processes that use one state directory.
//!
//! - [`OpeningLock`] is taken while a database is opened, checked, replaced or marked as cleanly closed.
//! - [`UseLock`] is shared by all stores that have the database open. Only a store that has it exclusively may replace
//!   the database.
//! - [`BackupLock`] is taken while a backup is made.
//!
//! These locks use `flock(2)`, so each belongs to an open file description. The locks of `SQLite` belong to the process
//! (`fcntl(2)`), which loses them when it closes any descriptor of the database.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::{Flock, FlockType, fcntl_getlk};

use crate::directory::{DATABASE, with_suffix};
use crate::error::StoreError;

/// Maximum time to wait for a process that opens the database; it may have to check or restore a large one.
const OPENING_TIMEOUT: Duration = Duration::from_secs(60);

const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The lock for opening the database. Dropping it releases the lock.
pub(crate) struct OpeningLock {
    _file: File,
}

impl OpeningLock {
    pub(crate) fn acquire(directory: &Path) -> Result<Self, StoreError> {
        Self::acquire_within(directory, OPENING_TIMEOUT)
    }

    fn acquire_within(directory: &Path, timeout: Duration) -> Result<Self, StoreError> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(lock) = Self::try_acquire(directory)? {
                return Ok(lock);
            }
            if Instant::now() >= deadline {
                let message =
                    format!("another process has locked the database for {} s while it opens it", timeout.as_secs());
                let source = io::Error::new(io::ErrorKind::TimedOut, message);
                return Err(StoreError::Directory { path: directory.to_owned(), source });
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    pub(crate) fn try_acquire(directory: &Path) -> Result<Option<Self>, StoreError> {
        let file = open(&directory.join("ringfence.lock"))?;
        let is_acquired = try_exclusive(&file).map_err(|errno| failed(directory, errno))?;
        Ok(is_acquired.then_some(Self { _file: file }))
    }
}

/// The other users of a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OtherUsers {
    None,
    /// Programs other than ringfence, such as `sqlite3`.
    Programs,
    /// Stores in this or another process.
    Stores,
}

/// Marks the database as in use until it is dropped. Only a holder of the [`OpeningLock`] changes it between shared and
/// exclusive.
pub(crate) struct UseLock {
    file: File,
    directory: PathBuf,
}

impl UseLock {
    /// Takes the lock exclusively if no other store has it, else shared.
    pub(crate) fn acquire(directory: &Path) -> Result<(Self, OtherUsers), StoreError> {
        let lock = Self { file: open(&directory.join("ringfence.in-use"))?, directory: directory.to_owned() };
        let others = lock.try_exclusive()?;
        if others == OtherUsers::Stores {
            lock.share()?;
        }
        Ok((lock, others))
    }

    /// Waits until there are no other users. Returns false after a timeout; the lock is then not even shared.
    pub(crate) fn wait_until_exclusive(&self, timeout: Duration) -> Result<bool, StoreError> {
        let deadline = Instant::now() + timeout;
        while self.try_exclusive()? != OtherUsers::None {
            if Instant::now() >= deadline {
                return Ok(false);
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(true)
    }

    /// Lets other stores use the database. Does not wait: only a holder of the [`OpeningLock`] has it exclusively.
    pub(crate) fn share(&self) -> Result<(), StoreError> {
        flock(&self.file, FlockOperation::LockShared).map_err(|errno| failed(&self.directory, errno))
    }

    /// Takes the lock exclusively unless there are other stores, and returns the other users.
    pub(crate) fn try_exclusive(&self) -> Result<OtherUsers, StoreError> {
        if !try_exclusive(&self.file).map_err(|errno| failed(&self.directory, errno))? {
            return Ok(OtherUsers::Stores);
        }
        let is_open = is_open_elsewhere(&self.directory)
            .map_err(|source| StoreError::Directory { path: self.directory.clone(), source })?;
        Ok(if is_open { OtherUsers::Programs } else { OtherUsers::None })
    }
}

/// The lock for making a backup. Dropping it releases the lock.
pub(crate) struct BackupLock {
    _file: File,
}

impl BackupLock {
    /// Returns `None` while another store makes a backup.
    pub(crate) fn try_acquire(database: &Path) -> io::Result<Option<Self>> {
        let file = open_file(&with_suffix(database, ".backup-lock"))?;
        Ok(try_exclusive(&file)?.then_some(Self { _file: file }))
    }
}

/// Returns whether a program that does not use these locks, such as `sqlite3`, has the database open.
///
/// In WAL mode, `SQLite` locks byte 128 of the index of the write-ahead log (the file `-shm`) while the database is
/// open. Only for a holder of the exclusive [`UseLock`]: closing the index drops the locks that this process has on it.
fn is_open_elsewhere(directory: &Path) -> io::Result<bool> {
    const OPEN_BYTE: u64 = 128;
    let index = match File::open(with_suffix(&directory.join(DATABASE), "-shm")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        index => index?,
    };
    let mut lock = Flock::from(FlockType::WriteLock);
    (lock.start, lock.length) = (OPEN_BYTE, 1);
    Ok(fcntl_getlk(&index, &lock)?.is_some())
}

fn try_exclusive(file: &File) -> Result<bool, Errno> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(errno) => Err(errno),
    }
}

fn open(path: &Path) -> Result<File, StoreError> {
    open_file(path).map_err(|source| StoreError::Directory { path: path.to_owned(), source })
}

fn open_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}

fn failed(directory: &Path, errno: Errno) -> StoreError {
    StoreError::Directory { path: directory.to_owned(), source: errno.into() }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    #[test]
    fn opening_lock_is_waited_for_until_a_timeout() {
        let directory = tempfile::tempdir().unwrap();
        let first = OpeningLock::acquire(directory.path()).unwrap();
        let error = OpeningLock::acquire_within(directory.path(), Duration::ZERO).err().unwrap();
        let cause = error.source().unwrap().to_string();
        assert!(cause.contains("another process"), "{cause}");
        let path = directory.path().to_owned();
        let waiting = std::thread::spawn(move || OpeningLock::acquire(&path).map(drop));
        std::thread::sleep(POLL_INTERVAL);
        drop(first);
        waiting.join().unwrap().unwrap();
    }
}
