//! Reads a private file through one descriptor, and only if no other user can have read, written or replaced it.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, Stat, fstat, open, openat};
use rustix::io::Errno;
use zeroize::Zeroizing;

/// Permissions of the file that no group or other user may have.
const GROUP_AND_OTHERS: u32 = 0o077;

/// Permissions of its directory that the group and others may have only if the directory is sticky, because names in a
/// sticky directory can be changed only by their owners.
const GROUP_AND_OTHERS_WRITE: u32 = 0o022;
const STICKY: u32 = 0o1000;

/// Reason why a private file was not read.
#[derive(Debug)]
pub(crate) enum PrivateFileError {
    Unreadable(std::io::Error),
    /// Another user may have read or written the file. The hint is the next step.
    Untrusted {
        problem: String,
        hint: String,
    },
}

/// What a private file contains, and how large it may be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PrivateFileKind {
    /// Such as `scope`, for messages.
    pub(crate) content: &'static str,
    pub(crate) max_bytes: u64,
}

/// Reads a file. The text is overwritten when it is dropped.
pub(crate) fn read(path: &Path, kind: PrivateFileKind) -> Result<(Zeroizing<Vec<u8>>, Stat), PrivateFileError> {
    let content = kind.content;
    let no_regular_file = || untrusted("is not a regular file", format!("write the {content} to a regular file"));
    let user = rustix::process::geteuid().as_raw();
    let Some(name) = path.file_name() else { return Err(no_regular_file()) };
    let parent = open_directory(path)?;
    // NONBLOCK: opening a pipe does not wait for a writer.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = match openat(&parent, name, flags, Mode::empty()) {
        Err(Errno::LOOP) => return Err(untrusted("is a symbolic link", "give the path of the file itself".into())),
        opened => opened.map_err(unreadable)?,
    };
    // From here on only the descriptor is used, because the path may change.
    let found = fstat(&opened).map_err(unreadable)?;
    if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
        return Err(no_regular_file());
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
        return Err(untrusted(&problem, format!("write the {content} to a new file")));
    }
    // Large enough at once: growing the buffer would leave copies of the text in memory.
    let length = u64::try_from(found.st_size).unwrap_or_default().min(kind.max_bytes);
    let mut text = Zeroizing::new(Vec::with_capacity(usize::try_from(length).unwrap_or_default() + 64));
    File::from(opened).take(kind.max_bytes + 1).read_to_end(&mut text).map_err(PrivateFileError::Unreadable)?;
    if text.len() as u64 > kind.max_bytes {
        return Err(untrusted(
            &format!("is larger than {} bytes", kind.max_bytes),
            format!("check that the path is that of a {content} file"),
        ));
    }
    Ok((text, found))
}

/// Opens the directory of a file. A user who can write the directory could have moved another of our files there.
pub(crate) fn open_directory(path: &Path) -> Result<OwnedFd, PrivateFileError> {
    let user = rustix::process::geteuid().as_raw();
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let opened = open(directory, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let opened = opened.map_err(unreadable)?;
    let found = fstat(&opened).map_err(unreadable)?;
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
    Ok(opened)
}

fn is_trusted(owner: u32) -> bool {
    owner == rustix::process::geteuid().as_raw() || owner == 0
}

fn unreadable(errno: Errno) -> PrivateFileError {
    PrivateFileError::Unreadable(errno.into())
}

fn untrusted(problem: &str, hint: String) -> PrivateFileError {
    PrivateFileError::Untrusted { problem: problem.to_owned(), hint }
}
