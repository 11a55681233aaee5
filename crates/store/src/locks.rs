//! Who opens the database, and who has it open.
//!
//! Two files are locked: one while a store is opened, so that servers that start together take turns; and one as long
//! as it is open, by all that have it open. Whoever has the second alone may put another database in its place.
//! Both with `flock`, which belongs to the opened file: the locks of `SQLite` belong to the process, and are lost when
//! the database is closed anywhere in it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::{Flock, FlockType, fcntl_getlk};

use super::StoreError;
use super::database::{NAME, beside};

/// How long others that have it open are waited for: a command lists something and is done.
const PATIENCE: Duration = Duration::from_secs(3);
const ASKED_EVERY: Duration = Duration::from_millis(20);

/// How long one that opens it before is waited for: it may have a large one to save.
const OPENING: Duration = Duration::from_secs(60);

/// Held until it is dropped.
pub(super) struct Turn(#[expect(dead_code, reason = "the lock lives as long as the file is open")] File);

impl Turn {
    pub(super) fn take(directory: &Path) -> Result<Self, StoreError> {
        Self::take_within(directory, OPENING)
    }

    fn take_within(directory: &Path, patience: Duration) -> Result<Self, StoreError> {
        let lock = open(&directory.join("ringfence.lock"))?;
        let until = Instant::now() + patience;
        loop {
            match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Self(lock)),
                Err(Errno::WOULDBLOCK) if Instant::now() < until => std::thread::sleep(ASKED_EVERY),
                Err(Errno::WOULDBLOCK) => {
                    let why = format!("another server has been opening it for {} s", patience.as_secs());
                    let source = io::Error::new(io::ErrorKind::TimedOut, why);
                    return Err(StoreError::Directory { path: directory.to_owned(), source });
                }
                Err(errno) => return Err(failed(directory, errno)),
            }
        }
    }
}

/// The database is in use as long as this lives. Changed only by whoever has the turn.
pub(super) struct InUse {
    lock: File,
    directory: PathBuf,
    is_alone: bool,
}

impl InUse {
    /// Alone if nobody else has it open.
    pub(super) fn take(directory: &Path) -> Result<Self, StoreError> {
        let lock = open(&directory.join("ringfence.in-use"))?;
        let mut taken = Self { lock, directory: directory.to_owned(), is_alone: false };
        if !taken.try_alone()? {
            taken.share()?;
        }
        Ok(taken)
    }

    pub(super) fn is_alone(&self) -> bool {
        self.is_alone
    }

    /// Waits for a while for the others to end; false if they do not, and then it is not even shared.
    pub(super) fn wait_until_alone(&mut self) -> Result<bool, StoreError> {
        let until = Instant::now() + PATIENCE;
        while !self.try_alone()? {
            if Instant::now() >= until {
                return Ok(false);
            }
            std::thread::sleep(ASKED_EVERY);
        }
        Ok(true)
    }

    /// From now on others may have it open, too. Nobody is waited for: only who has the turn can be alone.
    pub(super) fn share(&mut self) -> Result<(), StoreError> {
        flock(&self.lock, FlockOperation::LockShared).map_err(|errno| failed(&self.directory, errno))?;
        self.is_alone = false;
        Ok(())
    }

    fn try_alone(&mut self) -> Result<bool, StoreError> {
        self.is_alone = match flock(&self.lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => !is_open_elsewhere(&self.directory)
                .map_err(|source| StoreError::Directory { path: self.directory.clone(), source })?,
            Err(Errno::WOULDBLOCK) => false,
            Err(errno) => return Err(failed(&self.directory, errno)),
        };
        Ok(self.is_alone)
    }
}

/// Whether a program that knows nothing of these locks has the database open: every process that does, through
/// `SQLite` and with a log, has this byte of the log's index locked. Asked only by who has the other lock: closing the
/// file would take the same lock from this process.
fn is_open_elsewhere(directory: &Path) -> io::Result<bool> {
    const OPEN: u64 = 128;
    let index = match File::open(beside(&directory.join(NAME), "-shm")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        index => index?,
    };
    let mut lock = Flock::from(FlockType::WriteLock);
    (lock.start, lock.length) = (OPEN, 1);
    Ok(fcntl_getlk(&index, &lock)?.is_some())
}

fn open(path: &Path) -> Result<File, StoreError> {
    let opened = OpenOptions::new().create(true).append(true).mode(0o600).open(path);
    opened.map_err(|source| StoreError::Directory { path: path.to_owned(), source })
}

fn failed(directory: &Path, errno: Errno) -> StoreError {
    StoreError::Directory { path: directory.to_owned(), source: errno.into() }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    #[test]
    fn a_turn_is_waited_for_and_not_for_ever() {
        let directory = tempfile::tempdir().unwrap();
        let first = Turn::take(directory.path()).unwrap();
        let refused = Turn::take_within(directory.path(), Duration::ZERO).err().unwrap();
        let why = refused.source().unwrap().to_string();
        assert!(why.contains("another server"), "{why}");
        let path = directory.path().to_owned();
        let waiting = std::thread::spawn(move || Turn::take(&path).map(drop));
        std::thread::sleep(ASKED_EVERY);
        drop(first);
        waiting.join().unwrap().unwrap();
    }
}
