//! Placeholders: in a strict volume, absent protected names are created, so that they can be mounted read-only.
//!
//! All sandboxes of a volume share its placeholders, and the last one removes them. Locks on files in a private
//! directory of the host show which one is the last. Files that a guest can open are never locked, because the guest
//! could lock them too.

use std::fs::{DirBuilder, OpenOptions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{
    AtFlags, FileType, FlockOperation, Mode, OFlags, Timespec, Timestamps, flock, mkdirat, openat, statat,
};
use rustix::io::Errno;

use super::names::Form;
use super::open_directory;
use crate::error::errno_of;

/// The modification time of a placeholder: the start of 1970, which a user's file does not have in practice.
const PLACEHOLDER_TIME: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// Timeout for another process that creates or removes the placeholders of the same volume.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// Flags for objects that a guest may have replaced: follow no link, and do not block on a FIFO or a lease.
const UNTRUSTED: OFlags = OFlags::NOFOLLOW.union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

/// One sandbox's share in the placeholders of a volume. The last one to be dropped removes the placeholders.
#[derive(Debug)]
pub(crate) struct Placeholders {
    volume: OwnedFd,
    change_lock: PathBuf,
    /// Locked shared while the sandbox lives.
    users: OwnedFd,
    paths: Vec<(PathBuf, Form)>,
}

/// The exclusive right to create and remove the placeholders of a volume.
pub(super) struct ChangeLock(#[expect(dead_code, reason = "the lock lives as long as the descriptor")] OwnedFd);

impl Placeholders {
    /// Joins the users of a volume's placeholders. Drop the lock when all placeholders exist.
    pub(super) fn join(locks: &Path, volume: &OwnedFd) -> Result<(Self, ChangeLock), Errno> {
        DirBuilder::new().recursive(true).mode(0o700).create(locks).map_err(|error| errno_of(&error))?;
        let stat = rustix::fs::fstat(volume)?;
        let name = format!("{:x}-{:x}", stat.st_dev, stat.st_ino);
        let change_lock = locks.join(format!("{name}.turn"));
        let lock = acquire(&change_lock)?;
        let users = open_lock(&locks.join(format!("{name}.users")))?;
        flock(&users, FlockOperation::NonBlockingLockShared)?;
        let volume = rustix::io::fcntl_dupfd_cloexec(volume, 3)?;
        Ok((Self { volume, change_lock, users, paths: Vec::new() }, lock))
    }

    /// Creates a placeholder.
    pub(super) fn create(&mut self, path: &Path, form: Form) -> Result<(), Errno> {
        let (directory, name) = self.parent_of(path)?;
        let created = match form {
            Form::Directory | Form::Git => mkdirat(&directory, &*name, Mode::from_raw_mode(0o755))
                .and_then(|()| openat(&directory, &*name, UNTRUSTED | OFlags::DIRECTORY, Mode::empty())),
            Form::File(_) => {
                let flags = UNTRUSTED | OFlags::CREATE | OFlags::EXCL | OFlags::RDWR;
                openat(&directory, &*name, flags, Mode::from_raw_mode(0o644))
            }
        };
        let created = created?;
        // Before the time is set, so that it is removed even if that fails.
        self.paths.push((path.to_owned(), form));
        if let Form::File(text) = form {
            rustix::io::write(&created, text.as_bytes())?;
        }
        rustix::fs::futimens(
            &created,
            &Timestamps { last_access: PLACEHOLDER_TIME, last_modification: PLACEHOLDER_TIME },
        )
    }

    /// Shares an object that looks like a placeholder: one of another sandbox, or one that a killed process left.
    /// Returns whether it looks like one. It is not opened, because a guest may have a lease on it.
    pub(super) fn adopt(&mut self, path: &Path, form: Form) -> bool {
        let is_placeholder =
            self.parent_of(path).is_ok_and(|(directory, name)| looks_like_placeholder(&directory, &name, form));
        if is_placeholder && !self.paths.iter().any(|(known, _)| known == path) {
            self.paths.push((path.to_owned(), form));
        }
        is_placeholder
    }

    fn parent_of(&self, path: &Path) -> Result<(OwnedFd, PathBuf), Errno> {
        let name = path.file_name().ok_or(Errno::INVAL)?;
        Ok((open_directory(&self.volume, path.parent().unwrap_or(Path::new("")))?, name.into()))
    }
}

impl Drop for Placeholders {
    fn drop(&mut self) {
        let Ok(_lock) = acquire(&self.change_lock) else { return };
        // Only the last user: removing a name also removes its mount in every other sandbox.
        if flock(&self.users, FlockOperation::NonBlockingLockExclusive).is_err() {
            return;
        }
        for (path, form) in &self.paths {
            let Ok((directory, name)) = self.parent_of(path) else { continue };
            if is_unused(&directory, &name, *form) {
                let flags = if matches!(form, Form::File(_)) { AtFlags::empty() } else { AtFlags::REMOVEDIR };
                let _ = rustix::fs::unlinkat(&directory, &*name, flags);
            }
        }
    }
}

fn acquire(path: &Path) -> Result<ChangeLock, Errno> {
    let lock = open_lock(path)?;
    let deadline = Instant::now() + LOCK_TIMEOUT;
    loop {
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(5)),
            result => return result.map(|()| ChangeLock(lock)),
        }
    }
}

fn open_lock(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = i32::try_from(OFlags::NOFOLLOW.bits()).unwrap_or_default();
    let opened = OpenOptions::new().create(true).append(true).mode(0o600).custom_flags(flags).open(path);
    opened.map(Into::into).map_err(|error| errno_of(&error))
}

/// Whether an object has the kind, the size and the modification time of a placeholder.
fn looks_like_placeholder(directory: &OwnedFd, name: &Path, form: Form) -> bool {
    let Ok(stat) = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) else { return false };
    let has_form = match (form, FileType::from_raw_mode(stat.st_mode)) {
        (Form::Directory | Form::Git, FileType::Directory) => true,
        (Form::File(text), FileType::RegularFile) => u64::try_from(stat.st_size) == Ok(text.len() as u64),
        _ => false,
    };
    has_form && stat.st_mtime == PLACEHOLDER_TIME.tv_sec
}

/// Whether an object is a placeholder whose content was not changed.
fn is_unused(directory: &OwnedFd, name: &Path, form: Form) -> bool {
    if !looks_like_placeholder(directory, name, form) {
        return false;
    }
    let Ok(opened) = openat(directory, name, UNTRUSTED | OFlags::RDONLY, Mode::empty()) else { return false };
    match form {
        Form::Directory | Form::Git => {
            let is_dot = |entry: &rustix::fs::DirEntry| matches!(entry.file_name().to_bytes(), b"." | b"..");
            rustix::fs::Dir::read_from(&opened).is_ok_and(|mut all| all.all(|entry| entry.is_ok_and(|e| is_dot(&e))))
        }
        Form::File(text) => {
            let mut found = [0; 256];
            rustix::io::pread(&opened, &mut found, 0).is_ok_and(|length| &found[..length] == text.as_bytes())
        }
    }
}
