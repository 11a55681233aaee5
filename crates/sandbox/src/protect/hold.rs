//! Placeholders: in a strict volume, absent protected names are created so that they can be mounted read-only.
//!
//! The sandboxes on a volume share its placeholders; the last one removes them. Locks on files in a private directory
//! of the host show which one is the last. Files that a guest can open are never locked.

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

/// The modification time of a placeholder: the first second of 1970, which a user's file does not have in practice.
const MARK: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// Timeout for another process that creates or removes the placeholders of the same volume.
const TIMEOUT: Duration = Duration::from_secs(5);

const CAREFUL: OFlags = OFlags::NOFOLLOW.union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

/// The share of one sandbox in the placeholders of a volume.
#[derive(Debug)]
pub(crate) struct Hold {
    volume: OwnedFd,
    turn: PathBuf,
    /// Locked shared while the sandbox lives.
    users: OwnedFd,
    names: Vec<(PathBuf, Form)>,
}

/// The right to create and remove the placeholders of a volume.
pub(super) struct Turn(#[expect(dead_code, reason = "the lock lives as long as the descriptor")] OwnedFd);

impl Hold {
    /// Takes a share. Drop the turn when all placeholders exist.
    pub(super) fn begin(locks: &Path, volume: &OwnedFd) -> Result<(Self, Turn), Errno> {
        let own = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
        DirBuilder::new().recursive(true).mode(0o700).create(locks).map_err(own)?;
        let stat = rustix::fs::fstat(volume)?;
        let name = format!("{:x}-{:x}", stat.st_dev, stat.st_ino);
        let turn_path = locks.join(format!("{name}.turn"));
        let turn = take_turn(&turn_path)?;
        let users = open_lock(&locks.join(format!("{name}.users")))?;
        flock(&users, FlockOperation::NonBlockingLockShared)?;
        let volume = rustix::io::fcntl_dupfd_cloexec(volume, 3)?;
        Ok((Self { volume, turn: turn_path, users, names: Vec::new() }, turn))
    }

    /// Creates a placeholder.
    pub(super) fn make(&mut self, path: &Path, form: Form) -> Result<(), Errno> {
        let (directory, name) = self.parent_of(path)?;
        let made = match form {
            Form::Directory | Form::Git => mkdirat(&directory, &*name, Mode::from_raw_mode(0o755))
                .and_then(|()| openat(&directory, &*name, CAREFUL | OFlags::DIRECTORY, Mode::empty())),
            Form::File(_) => {
                let flags = CAREFUL | OFlags::CREATE | OFlags::EXCL | OFlags::RDWR;
                openat(&directory, &*name, flags, Mode::from_raw_mode(0o644))
            }
        };
        let made = made?;
        // Before it is marked, so that it is removed even if marking fails.
        self.names.push((path.to_owned(), form));
        if let Form::File(text) = form {
            rustix::io::write(&made, text.as_bytes())?;
        }
        rustix::fs::futimens(&made, &Timestamps { last_access: MARK, last_modification: MARK })
    }

    /// Shares an existing file that looks like a placeholder, of another sandbox or left by a killed one; returns
    /// whether it does. The file is not opened: a guest may have a lease on it.
    pub(super) fn adopt(&mut self, path: &Path, form: Form) -> bool {
        let is_one = self.parent_of(path).is_ok_and(|(directory, name)| is_marked(&directory, &name, form));
        if is_one && !self.names.iter().any(|(known, _)| known == path) {
            self.names.push((path.to_owned(), form));
        }
        is_one
    }

    fn parent_of(&self, path: &Path) -> Result<(OwnedFd, PathBuf), Errno> {
        let name = path.file_name().ok_or(Errno::INVAL)?;
        Ok((open_directory(&self.volume, path.parent().unwrap_or(Path::new("")))?, name.into()))
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let Ok(_turn) = take_turn(&self.turn) else { return };
        // Removing a name also removes its mount in every other sandbox.
        if flock(&self.users, FlockOperation::NonBlockingLockExclusive).is_err() {
            return;
        }
        for (path, form) in &self.names {
            let Ok((directory, name)) = self.parent_of(path) else { continue };
            if is_placeholder(&directory, &name, *form) {
                let flags = if matches!(form, Form::File(_)) { AtFlags::empty() } else { AtFlags::REMOVEDIR };
                let _ = rustix::fs::unlinkat(&directory, &*name, flags);
            }
        }
    }
}

fn take_turn(path: &Path) -> Result<Turn, Errno> {
    let lock = open_lock(path)?;
    let deadline = Instant::now() + TIMEOUT;
    loop {
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(5)),
            result => return result.map(|()| Turn(lock)),
        }
    }
}

fn open_lock(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = i32::try_from(OFlags::NOFOLLOW.bits()).unwrap_or_default();
    let opened = OpenOptions::new().create(true).append(true).mode(0o600).custom_flags(flags).open(path);
    opened.map(Into::into).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

/// Whether it has the kind, the size and the modification time of a placeholder.
fn is_marked(directory: &OwnedFd, name: &Path, form: Form) -> bool {
    let Ok(stat) = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) else { return false };
    let fits = match (form, FileType::from_raw_mode(stat.st_mode)) {
        (Form::Directory | Form::Git, FileType::Directory) => true,
        (Form::File(text), FileType::RegularFile) => u64::try_from(stat.st_size) == Ok(text.len() as u64),
        _ => false,
    };
    fits && stat.st_mtime == MARK.tv_sec
}

/// The same, and nothing was put into it.
fn is_placeholder(directory: &OwnedFd, name: &Path, form: Form) -> bool {
    if !is_marked(directory, name, form) {
        return false;
    }
    let Ok(opened) = openat(directory, name, CAREFUL | OFlags::RDONLY, Mode::empty()) else { return false };
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
