//! Reads the file of a scope through one descriptor, and only if no other user can have read, written or replaced it.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat, fstat, open, openat, statat};
use rustix::io::Errno;

use super::ScopeError;

/// Maximum size of a scope file; scopes are much smaller.
const MAX_BYTES: u64 = 64 << 10;

/// Permissions of the file that no group or other user may have.
const GROUP_AND_OTHERS: u32 = 0o077;

/// Permissions of its directory that the group and others may have only if the directory is sticky, because names in a
/// sticky directory can be changed only by their owners.
const GROUP_AND_OTHERS_WRITE: u32 = 0o022;
const STICKY: u32 = 0o1000;

/// A scope file that was read and can be removed.
#[derive(Debug)]
pub struct ScopeFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl ScopeFile {
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the file, unless another file has its name now.
    pub fn remove(self) -> std::io::Result<()> {
        match statat(CWD, &self.path, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) if identity(&found) == self.identity => std::fs::remove_file(&self.path),
            Ok(_) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

pub(super) fn read(path: &Path) -> Result<(Vec<u8>, ScopeFile), ScopeError> {
    let unreadable = |source: std::io::Error| ScopeError::Unreadable { path: path.to_owned(), source };
    let untrusted = |problem: &str, hint: String| ScopeError::Untrusted {
        path: path.to_owned(),
        problem: problem.to_owned(),
        hint,
    };
    let user = rustix::process::geteuid().as_raw();
    let is_trusted = |owner: u32| owner == user || owner == 0;
    let Some(name) = path.file_name() else {
        return Err(untrusted("is not a regular file", "write the scope to a regular file".into()));
    };
    // A user who can write the directory could have moved another of our files there.
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let opened = open(directory, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let parent = opened.map_err(|errno| unreadable(errno.into()))?;
    let found = fstat(&parent).map_err(|errno| unreadable(errno.into()))?;
    if !is_trusted(found.st_uid) {
        let problem = format!("lies in a directory of another user (uid {})", found.st_uid);
        return Err(untrusted(
            &problem,
            format!("put it into a directory of the server's user (uid {user}) or of root"),
        ));
    }
    let mode = found.st_mode & 0o7777;
    if mode & GROUP_AND_OTHERS_WRITE != 0 && mode & STICKY == 0 {
        let problem = format!("lies in a directory that others can write (mode {mode:04o})");
        return Err(untrusted(
            &problem,
            format!("`chmod go-w {}`, or put the file into another directory", directory.display()),
        ));
    }
    // NONBLOCK: opening a pipe does not wait for a writer.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = match openat(&parent, name, flags, Mode::empty()) {
        Err(Errno::LOOP) => return Err(untrusted("is a symbolic link", "give the path of the file itself".into())),
        opened => opened.map_err(|errno| unreadable(errno.into()))?,
    };
    // From here on only the descriptor is used, because the path may change.
    let found = fstat(&opened).map_err(|errno| unreadable(errno.into()))?;
    if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
        return Err(untrusted("is not a regular file", "write the scope to a regular file".into()));
    }
    if !is_trusted(found.st_uid) {
        let problem = format!("belongs to another user (uid {})", found.st_uid);
        return Err(untrusted(&problem, format!("write it as the server's user (uid {user}) or as root")));
    }
    let mode = found.st_mode & 0o7777;
    if mode & GROUP_AND_OTHERS != 0 {
        let problem = format!("can be read or written by others (mode {mode:04o})");
        return Err(untrusted(&problem, format!("`chmod 600 {}`", path.display())));
    }
    if found.st_nlink != 1 {
        let problem = format!("has {} hard links, so that it may be accessible under another path", found.st_nlink);
        return Err(untrusted(&problem, "write the scope to a new file".into()));
    }
    let mut text = Vec::new();
    File::from(opened).take(MAX_BYTES + 1).read_to_end(&mut text).map_err(unreadable)?;
    if text.len() as u64 > MAX_BYTES {
        return Err(untrusted(
            &format!("is larger than {MAX_BYTES} bytes"),
            "check that the path is that of a scope file".into(),
        ));
    }
    Ok((text, ScopeFile { path: path.to_owned(), identity: identity(&found) }))
}

fn identity(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}
