//! Sections of the cache. A section has completed directories under `ready/`, directories in preparation under `new/`,
//! and lock files under `locks/`, all with the same names.
//!
//! A directory is prepared under its lock and moved to `ready/` when it is complete, so that `ready/` never has a partial
//! one.

use std::fs::{self, DirBuilder, File};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};

/// Mode of directories for the owner only.
pub const PRIVATE_MODE: u32 = 0o700;

/// Mode of directories that guests may read under any uid. Private parent directories protect them from other users of
/// the host.
pub const GUEST_READABLE_MODE: u32 = 0o755;

/// Interval between attempts to take a lock that another process has.
pub const LOCK_RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// Creates a directory and its parents. Parents are private.
pub fn create_directory(path: &Path, mode: u32) -> std::io::Result<()> {
    DirBuilder::new().recursive(true).mode(PRIVATE_MODE).create(path)?;
    // Independent of the umask of this process.
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

/// Creates the directories of a section.
pub fn create_section(section: &Path) -> std::io::Result<()> {
    create_directory(section, PRIVATE_MODE)?;
    [("ready", GUEST_READABLE_MODE), ("new", PRIVATE_MODE), ("locks", PRIVATE_MODE)]
        .into_iter()
        .try_for_each(|(name, mode)| create_directory(&section.join(name), mode))
}

/// Takes a lock across processes; returns `None` if another owner has it. Closing the file releases the lock.
pub fn try_lock(path: &Path) -> std::io::Result<Option<File>> {
    let file = fs::OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Removes directories under `new/` whose process was killed before they were complete.
pub fn remove_abandoned(section: &Path) {
    let Ok(entries) = fs::read_dir(section.join("new")) else { return };
    for entry in entries.flatten() {
        let lock = section.join("locks").join(entry.file_name());
        if let Ok(Some(_lock)) = try_lock(&lock) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
