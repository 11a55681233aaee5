//! Parts of the cache: what is made aside under a lock, and appears under its name when it is complete.

use std::fs::{self, DirBuilder, File};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};

/// For the owner alone.
pub const PRIVATE: u32 = 0o700;

/// For whoever a sandbox's guest is on the host; what lies above it keeps the others out.
pub const SHOWN: u32 = 0o755;

/// How often a lock that another has is tried again.
pub const BETWEEN_TRIES: Duration = Duration::from_millis(100);

pub fn make_directory(path: &Path, mode: u32) -> std::io::Result<()> {
    DirBuilder::new().recursive(true).mode(PRIVATE).create(path)?;
    // Whatever the mask is that this process was started with.
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

/// The directories of a part: what is `ready`, what is being made, and the locks of both, by the same names.
pub fn make_part(part: &Path) -> std::io::Result<()> {
    make_directory(part, PRIVATE)?;
    [("ready", SHOWN), ("new", PRIVATE), ("locks", PRIVATE)]
        .into_iter()
        .try_for_each(|(name, mode)| make_directory(&part.join(name), mode))
}

/// Nothing where another has it; across processes too.
pub fn try_lock(path: &Path) -> std::io::Result<Option<File>> {
    let file = fs::OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Removes what was left by those who were killed while they made it.
pub fn sweep(part: &Path) {
    let Ok(entries) = fs::read_dir(part.join("new")) else { return };
    for entry in entries.flatten() {
        let lock = part.join("locks").join(entry.file_name());
        if let Ok(Some(_lock)) = try_lock(&lock) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
