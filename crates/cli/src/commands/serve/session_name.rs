//! The exclusive use of a session name by one process: sessions have one owner at a time.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ringfence_mcp::connection::ConnectionName;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::failure::Failure;

/// Maximum time to wait for a process with the same name. Frameworks that start a process for each call start the next
/// one while the one before is still ending.
const TIMEOUT: Duration = Duration::from_secs(10);

const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A lock that the kernel releases when this process ends. Its file is removed when this is dropped.
pub(super) struct SessionNameLock {
    path: PathBuf,
    _file: File,
}

impl SessionNameLock {
    /// Waits until no other process has this name, for a limited time. `tag` identifies the name and the scope.
    pub(super) fn acquire(state: &Path, name: &ConnectionName, tag: &str) -> Result<Self, Failure> {
        let failed = |error: io::Error| Failure::new(format!("cannot use the session name `{name}`")).caused_by(&error);
        let directory = state.join("session-names");
        DirBuilder::new().recursive(true).mode(0o700).create(&directory).map_err(failed)?;
        let path = directory.join(format!("{tag}.lock"));
        let deadline = Instant::now() + TIMEOUT;
        loop {
            if let Some(lock) = Self::try_acquire(&path).map_err(failed)? {
                return Ok(lock);
            }
            if Instant::now() >= deadline {
                let message = format!("another process uses the session name `{name}`");
                return Err(Failure::new(message).hint("wait until it has ended, or choose another name"));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    fn try_acquire(path: &Path) -> io::Result<Option<Self>> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        }
        // The process before may have removed the file after this one has opened it.
        let is_current = match path.metadata() {
            Ok(current) => current.ino() == file.metadata()?.ino(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(error) => return Err(error),
        };
        Ok(is_current.then(|| Self { path: path.to_owned(), _file: file }))
    }
}

impl Drop for SessionNameLock {
    fn drop(&mut self) {
        // While it is locked, so that no other process can have locked the same file.
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_has_one_owner_at_a_time() {
        let state = tempfile::tempdir().unwrap();
        let path = state.path().join("tag.lock");
        let first = SessionNameLock::try_acquire(&path).unwrap().unwrap();
        assert!(SessionNameLock::try_acquire(&path).unwrap().is_none());
        drop(first);
        assert!(!path.exists(), "no file is left");
        assert!(SessionNameLock::try_acquire(&path).unwrap().is_some());
    }
}
