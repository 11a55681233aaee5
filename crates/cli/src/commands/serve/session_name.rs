//! The exclusive use of a session name by one process: sessions have one owner at a time.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use ringfence_mcp::connection::ConnectionName;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::failure::Failure;

/// Maximum time to wait for a process with the same name. Frameworks that start a process for each call start the next
/// one while the one before is still ending, which takes up to 20 seconds if it waits for its calls.
const TIMEOUT: Duration = Duration::from_secs(30);

const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The lock of this process. The kernel releases it together with the connections to launchers, when the process ends:
/// the next process can then adopt their sandboxes.
static LOCK: OnceLock<File> = OnceLock::new();

/// Waits until no other process has this name, for a limited time, and claims it until the end of this process. `tag`
/// identifies the name and the scope.
pub(super) fn claim(state: &Path, name: &ConnectionName, tag: &str) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::new(format!("cannot use the session name `{name}`")).caused_by(&error);
    let directory = state.join("session-names");
    DirBuilder::new().recursive(true).mode(0o700).create(&directory).map_err(failed)?;
    let deadline = Instant::now() + TIMEOUT;
    loop {
        if let Some(lock) = try_lock(&directory.join(tag)).map_err(failed)? {
            let _ = LOCK.set(lock);
            remove_unused(&directory, tag);
            return Ok(());
        }
        if Instant::now() >= deadline {
            let message = format!("another process uses the session name `{name}`");
            return Err(Failure::new(message).hint("wait until it has ended, or choose another name"));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Locks a file. Returns None if another process has locked it, or has just removed it.
fn try_lock(path: &Path) -> io::Result<Option<File>> {
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    }
    let is_current = match path.metadata() {
        Ok(current) => current.ino() == file.metadata()?.ino(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => false,
        Err(error) => return Err(error),
    };
    Ok(is_current.then_some(file))
}

/// Removes the files of other names that no process uses, so that their number does not grow.
fn remove_unused(directory: &Path, tag: &str) {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    for path in entries.filter(|entry| entry.file_name() != tag).map(|entry| entry.path()) {
        // While it is locked: a process that has opened it meanwhile notices that it was removed.
        if let Ok(Some(_lock)) = try_lock(&path) {
            let _ = std::fs::remove_file(&path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_has_one_owner_at_a_time() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("one");
        let first = try_lock(&path).unwrap().unwrap();
        assert!(try_lock(&path).unwrap().is_none());
        remove_unused(directory.path(), "other");
        assert!(path.exists(), "a name in use remains");
        drop(first);
        remove_unused(directory.path(), "one");
        assert!(try_lock(&path).unwrap().is_some());
        remove_unused(directory.path(), "other");
        assert!(!path.exists());
    }
}
