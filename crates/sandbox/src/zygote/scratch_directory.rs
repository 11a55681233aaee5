//! A temporary directory that is removed with its owner, or by the next owner if the process was killed.

use std::fs::DirBuilder;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, fstat};

const PREFIX: &str = "ringfence-zygote-";

/// Not `$TMPDIR`, which may be inside a volume that guests can write; `/tmp` is never a volume.
const PARENT: &str = "/tmp";

pub(super) struct ScratchDirectory {
    path: PathBuf,
    /// Locked while the owner lives.
    _lock: OwnedFd,
}

impl ScratchDirectory {
    pub(super) fn new() -> std::io::Result<Self> {
        let parent = Path::new(PARENT);
        remove_stale(parent);
        let mut random = [0; 8];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
        let path = parent.join(format!("{PREFIX}{:016x}", u64::from_ne_bytes(random)));
        DirBuilder::new().mode(0o700).create(&path)?;
        let lock = open(&path)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Self { path, _lock: lock })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for ScratchDirectory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

fn open(path: &Path) -> rustix::io::Result<OwnedFd> {
    rustix::fs::open(path, OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

/// Removes the directories that killed processes of this user have left.
fn remove_stale(parent: &Path) {
    const MAX_DIRECTORIES: usize = 64;
    let uid = rustix::process::geteuid().as_raw();
    let Ok(entries) = std::fs::read_dir(parent) else { return };
    let has_prefix = |entry: &std::fs::DirEntry| entry.file_name().as_encoded_bytes().starts_with(PREFIX.as_bytes());
    for entry in entries.flatten().filter(has_prefix).take(MAX_DIRECTORIES) {
        let Ok(directory) = open(&entry.path()) else { continue };
        let is_ours = fstat(&directory).is_ok_and(|stat| stat.st_uid == uid);
        if is_ours && flock(&directory, FlockOperation::NonBlockingLockExclusive).is_ok() {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_of_killed_owner_is_removed_by_the_next() {
        let in_use = ScratchDirectory::new().unwrap();
        let stale = Path::new(PARENT).join(format!("{PREFIX}of-a-test-{}", std::process::id()));
        std::fs::create_dir(&stale).unwrap();
        std::fs::write(stale.join("file"), "left").unwrap();
        let next = ScratchDirectory::new().unwrap();
        assert!(!stale.exists());
        assert!(in_use.path().exists() && next.path().exists());
        let path = next.path().to_owned();
        drop(next);
        assert!(!path.exists());
    }
}
