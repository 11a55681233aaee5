//! A temporary directory that goes with its owner, or, if that is killed, with the next one who makes one.

use std::fs::DirBuilder;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, fstat};

const PREFIX: &str = "ringfence-zygote-";

/// Not `$TMPDIR`, which may be inside a volume that guests can write; `/tmp` is never a volume.
const PARENT: &str = "/tmp";

pub(super) struct Scratch {
    path: PathBuf,
    /// Locked while its owner lives.
    _locked: OwnedFd,
}

impl Scratch {
    pub(super) fn new() -> std::io::Result<Self> {
        let parent = Path::new(PARENT);
        sweep(parent);
        let mut random = [0; 8];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
        let path = parent.join(format!("{PREFIX}{:016x}", u64::from_ne_bytes(random)));
        DirBuilder::new().mode(0o700).create(&path)?;
        let locked = open(&path)?;
        flock(&locked, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Self { path, _locked: locked })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

fn open(path: &Path) -> rustix::io::Result<OwnedFd> {
    rustix::fs::open(path, OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

/// Removes what owners that were killed have left, where it is this user's own.
fn sweep(parent: &Path) {
    const MOST: usize = 64;
    let own = rustix::process::geteuid().as_raw();
    let Ok(entries) = std::fs::read_dir(parent) else { return };
    let ours = |entry: &std::fs::DirEntry| entry.file_name().as_encoded_bytes().starts_with(PREFIX.as_bytes());
    for entry in entries.flatten().filter(ours).take(MOST) {
        let Ok(held) = open(&entry.path()) else { continue };
        let is_own = fstat(&held).is_ok_and(|stat| stat.st_uid == own);
        if is_own && flock(&held, FlockOperation::NonBlockingLockExclusive).is_ok() {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_owner_left_goes_with_the_next() {
        let kept = Scratch::new().unwrap();
        let left = Path::new(PARENT).join(format!("{PREFIX}of-a-test-{}", std::process::id()));
        std::fs::create_dir(&left).unwrap();
        std::fs::write(left.join("file"), "left").unwrap();
        let next = Scratch::new().unwrap();
        assert!(!left.exists());
        assert!(kept.path().exists() && next.path().exists());
        let path = next.path().to_owned();
        drop(next);
        assert!(!path.exists());
    }
}
