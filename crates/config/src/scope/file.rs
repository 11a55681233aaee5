//! The file of a scope: read from one descriptor, and only if nobody else can have had a hand in it.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat, fstat, open, openat, statat};
use rustix::io::Errno;

use super::ScopeError;

/// Far more than a scope needs.
const MOST_BYTES: u64 = 64 << 10;

/// What others may do with it: nothing.
const OTHERS: u32 = 0o077;

/// What the group and others may do with its directory: not write it, unless names there can only be changed by their
/// owners.
const OTHERS_WRITE: u32 = 0o022;
const STICKY: u32 = 0o1000;

/// A scope's file that was read, for whoever has to remove it.
#[derive(Debug)]
pub struct ScopeFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl ScopeFile {
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes it, unless something else has its name by now.
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
        return Err(untrusted("is not a regular file", "write it to a file of its own".into()));
    };
    // Whoever can write it could have put another of our files there.
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let opened = open(directory, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let within = opened.map_err(|errno| unreadable(errno.into()))?;
    let found = fstat(&within).map_err(|errno| unreadable(errno.into()))?;
    if !is_trusted(found.st_uid) {
        let problem = format!("lies in a directory of another user, with the id {}", found.st_uid);
        return Err(untrusted(
            &problem,
            format!("put it into a directory of the user that serves (id {user}), or of root"),
        ));
    }
    let mode = found.st_mode & 0o7777;
    if mode & OTHERS_WRITE != 0 && mode & STICKY == 0 {
        let problem = format!("lies in a directory that others can write (mode {mode:04o})");
        return Err(untrusted(&problem, format!("`chmod go-w {}`, or put it into another", directory.display())));
    }
    // Does not wait for whoever should write a pipe.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = match openat(&within, name, flags, Mode::empty()) {
        Err(Errno::LOOP) => return Err(untrusted("is a link", "give the file itself".into())),
        opened => opened.map_err(|errno| unreadable(errno.into()))?,
    };
    // From here on only the descriptor counts, whatever becomes of the path.
    let found = fstat(&opened).map_err(|errno| unreadable(errno.into()))?;
    if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
        return Err(untrusted("is not a regular file", "write it to a file of its own".into()));
    }
    if !is_trusted(found.st_uid) {
        let problem = format!("belongs to another user, with the id {}", found.st_uid);
        return Err(untrusted(&problem, format!("let it be written by the user that serves (id {user}), or by root")));
    }
    let mode = found.st_mode & 0o7777;
    if mode & OTHERS != 0 {
        let problem = format!("can be read or written by others (mode {mode:04o})");
        return Err(untrusted(&problem, format!("`chmod 600 {}`", path.display())));
    }
    if found.st_nlink != 1 {
        let problem = format!("has {} names, and may be known by one that is not yours", found.st_nlink);
        return Err(untrusted(&problem, "write it to a new file of its own".into()));
    }
    let mut text = Vec::new();
    File::from(opened).take(MOST_BYTES + 1).read_to_end(&mut text).map_err(unreadable)?;
    if text.len() as u64 > MOST_BYTES {
        return Err(untrusted(&format!("is larger than {MOST_BYTES} bytes"), "give a scope, and nothing else".into()));
    }
    Ok((text, ScopeFile { path: path.to_owned(), identity: identity(&found) }))
}

fn identity(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}
