//! Names in a read-write volume that the guest must not write, because a program outside would run or
//! obey what they hold: git hooks, editor and MCP client settings, shell start files.
//!
//! A name that exists is mounted read-only over itself. One that does not is first made, as a
//! placeholder that says what it is, and is removed when the last sandbox on the volume ends: a name
//! that is not there cannot be mounted over. Only the top of a volume is protected.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, Timespec, Timestamps, flock, mkdirat, openat};
use rustix::io::Errno;

use crate::error::Error;

/// Obeyed in any project directory. A placeholder must be valid and mean nothing to who reads it.
const IN_PROJECTS: [(&str, Form); 7] = [
    (".git", Form::Directory),
    (".mcp.json", Form::File("{}\n")),
    (".vscode", Form::Directory),
    (".cursor", Form::Directory),
    (".claude", Form::Directory),
    (".envrc", Form::File(COMMENT)),
    ("ringfence.toml", Form::File(COMMENT)),
];

/// Obeyed in home directories only.
const IN_HOMES: [(&str, Form); 6] = [
    (".bashrc", Form::File(COMMENT)),
    (".bash_profile", Form::File(COMMENT)),
    (".profile", Form::File(COMMENT)),
    (".zshrc", Form::File(COMMENT)),
    (".zshenv", Form::File(COMMENT)),
    (".zprofile", Form::File(COMMENT)),
];

/// Written where nothing may be planted, whatever it is.
const NEVER: [&str; 2] = ["site-packages", "dist-packages"];

/// Protected where they exist; a guest may make new ones.
const WHERE_PRESENT: [&str; 2] = [".venv", "venv"];

/// What stands in a placeholder that is a file, where nothing else must.
pub const COMMENT: &str = "# held by ringfence while a sandbox may write this directory; removed afterwards\n";

/// The time of change of a placeholder: the first second of 1970.
const MARK: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

#[derive(Debug, Clone, Copy)]
enum Form {
    Directory,
    File(&'static str),
}

impl Form {
    fn unlink_flags(self) -> AtFlags {
        match self {
            Self::Directory => AtFlags::REMOVEDIR,
            Self::File(_) => AtFlags::empty(),
        }
    }
}

/// A name that is held for the length of a sandbox.
#[derive(Debug)]
pub(crate) struct Placeholder {
    directory: OwnedFd,
    name: &'static str,
    form: Form,
    held: OwnedFd,
}

/// Gives the names to mount read-only in `volume`, and the placeholders made for those that were missing.
///
/// Everything is reached from the volume's descriptor, and no link is followed: a guest may have planted
/// what is found. `path` is where it lies on the host.
pub(crate) fn protect(volume: &OwnedFd, path: &Path) -> Result<(Vec<PathBuf>, Vec<Placeholder>), Error> {
    // Outlives the turn: a placeholder needs a turn of its own to go.
    let mut placeholders = Vec::new();
    let turn = Turn::take(volume).map_err(|errno| unprotectable(path, &format!("it cannot be locked: {errno}")))?;
    let names = hold_names(volume, path, &mut placeholders);
    drop(turn);
    Ok((names?, placeholders))
}

fn hold_names(volume: &OwnedFd, path: &Path, placeholders: &mut Vec<Placeholder>) -> Result<Vec<PathBuf>, Error> {
    if path.components().any(|part| NEVER.iter().any(|never| part.as_os_str() == *never)) {
        return Err(unprotectable(path, "programs outside import what lies there; mount it `ro`"));
    }
    let mut names: Vec<PathBuf> = Vec::new();
    for name in WHERE_PRESENT {
        if kind_of(volume, name) == Ok(FileType::Directory) {
            names.push(name.into());
        }
    }
    let home = is_home(path);
    for (index, (name, form)) in IN_PROJECTS.iter().chain(&IN_HOMES).enumerate() {
        let may_be_made = home || index < IN_PROJECTS.len();
        let refuse = |why: &str| unprotectable(&path.join(name), why);
        match kind_of(volume, name) {
            Ok(FileType::Directory | FileType::RegularFile) => {
                placeholders.extend(Placeholder::adopt(volume, name, *form));
                names.push(name.into());
            }
            Ok(_) => {
                return Err(refuse(
                    "it is neither a file nor a directory, and cannot be protected; mount the volume `ro`",
                ));
            }
            Err(Errno::NOENT) if may_be_made => match Placeholder::make(volume, name, *form) {
                Ok(placeholder) => {
                    placeholders.push(placeholder);
                    names.push(name.into());
                }
                // Where we may not create, neither may the guest.
                Err(Errno::ACCESS | Errno::PERM | Errno::ROFS) => {}
                Err(errno) => return Err(refuse(&errno.to_string())),
            },
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(refuse(&errno.to_string())),
        }
    }
    Ok(names)
}

fn kind_of(directory: &OwnedFd, name: &str) -> rustix::io::Result<FileType> {
    let stat = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(FileType::from_raw_mode(stat.st_mode))
}

/// The right to make, share or remove the placeholders of a volume; one process has it at a time.
struct Turn(#[allow(dead_code, reason = "held for its lock")] OwnedFd);

impl Turn {
    /// Waits for the others, but not for ever: a program of the host could hold the lock, too.
    fn take(volume: &OwnedFd) -> rustix::io::Result<Self> {
        const TRIES: u32 = 500;
        let directory = openat(volume, ".", CAREFUL | OFlags::DIRECTORY | OFlags::RDONLY, Mode::empty())?;
        for _ in 0..TRIES {
            match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::WOULDBLOCK) => std::thread::sleep(std::time::Duration::from_millis(10)),
                result => return result.map(|()| Self(directory)),
            }
        }
        Err(Errno::WOULDBLOCK)
    }
}

/// Never waits, as for a pipe that has no writer, and never follows a link.
const CAREFUL: OFlags = OFlags::NOFOLLOW.union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

impl Placeholder {
    fn make(directory: &OwnedFd, name: &'static str, form: Form) -> rustix::io::Result<Self> {
        let own_directory = rustix::io::fcntl_dupfd_cloexec(directory, 3)?;
        let made = match form {
            Form::Directory => mkdirat(directory, name, Mode::from_raw_mode(0o755))
                .and_then(|()| openat(directory, name, CAREFUL | OFlags::DIRECTORY, Mode::empty())),
            Form::File(_) => {
                let flags = CAREFUL | OFlags::CREATE | OFlags::EXCL | OFlags::RDWR;
                openat(directory, name, flags, Mode::from_raw_mode(0o644))
            }
        };
        let held = made?;
        if let Err(errno) = mark(&held, form) {
            let _ = rustix::fs::unlinkat(directory, name, form.unlink_flags());
            return Err(errno);
        }
        Ok(Self { directory: own_directory, name, form, held })
    }

    /// Shares one that another sandbox made, or that a killed one left behind.
    fn adopt(directory: &OwnedFd, name: &'static str, form: Form) -> Option<Self> {
        let held = openat(directory, name, CAREFUL | OFlags::RDONLY, Mode::empty()).ok()?;
        let placeholder = is_placeholder(&held, form) && flock(&held, FlockOperation::NonBlockingLockShared).is_ok();
        placeholder.then_some(())?;
        Some(Self { directory: rustix::io::fcntl_dupfd_cloexec(directory, 3).ok()?, name, form, held })
    }
}

/// Gives a new name the content and the time of a placeholder, and holds it.
fn mark(held: &OwnedFd, form: Form) -> rustix::io::Result<()> {
    if let Form::File(text) = form {
        rustix::io::write(held, text.as_bytes())?;
    }
    rustix::fs::futimens(held, &Timestamps { last_access: MARK, last_modification: MARK })?;
    flock(held, FlockOperation::NonBlockingLockShared)
}

/// Whether it has the content of a placeholder and a time of change that nothing else has, so that a
/// person's own is never taken for one.
fn is_placeholder(held: &OwnedFd, form: Form) -> bool {
    let marked = rustix::fs::fstat(held).is_ok_and(|stat| stat.st_mtime == MARK.tv_sec);
    marked
        && match form {
            Form::Directory => {
                rustix::fs::Dir::read_from(held).is_ok_and(|mut entries| entries.all(|entry| is_dot(&entry)))
            }
            Form::File(text) => {
                let mut found = [0; 256];
                rustix::io::pread(held, &mut found, 0).is_ok_and(|length| &found[..length] == text.as_bytes())
            }
        }
}

fn is_dot(entry: &rustix::io::Result<rustix::fs::DirEntry>) -> bool {
    entry.as_ref().is_ok_and(|entry| matches!(entry.file_name().to_bytes(), b"." | b".."))
}

impl Drop for Placeholder {
    fn drop(&mut self) {
        let Ok(_turn) = Turn::take(&self.directory) else { return };
        // The last holder removes it (unlinking would take the mount out of the others' trees), and only if
        // nobody has made something of it meanwhile.
        let last = flock(&self.held, FlockOperation::NonBlockingLockExclusive).is_ok();
        let held = rustix::fs::fstat(&self.held);
        let found = rustix::fs::statat(&self.directory, self.name, AtFlags::SYMLINK_NOFOLLOW);
        if let (true, Ok(held), Ok(found)) = (last && is_placeholder(&self.held, self.form), held, found)
            && (held.st_dev, held.st_ino) == (found.st_dev, found.st_ino)
        {
            let _ = rustix::fs::unlinkat(&self.directory, self.name, self.form.unlink_flags());
        }
    }
}

fn is_home(directory: &Path) -> bool {
    let own = std::env::var_os("HOME").is_some_and(|home| Path::new(&home) == directory);
    let listed = || {
        let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
        passwd.lines().any(|line| line.split(':').nth(5).is_some_and(|home| Path::new(home) == directory))
    };
    own || listed()
}

fn unprotectable(path: &Path, why: &str) -> Error {
    Error::Volume { path: path.to_owned(), source: Errno::ACCESS, hint: why.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap().flatten();
        let mut names: Vec<String> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn protect(directory: &Path) -> Result<(Vec<PathBuf>, Vec<Placeholder>), Error> {
        let opened = rustix::fs::open(directory, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        super::protect(&opened, directory)
    }

    #[test]
    fn what_cannot_be_protected_is_refused_without_waiting() {
        let directory = tempfile::tempdir().unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, directory.path().join(".envrc"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        assert!(protect(directory.path()).is_err());
    }

    #[test]
    fn placeholders_live_as_long_as_their_last_holder() {
        let directory = tempfile::tempdir().unwrap();
        let (protected, first) = protect(directory.path()).unwrap();
        assert_eq!(protected.len(), IN_PROJECTS.len());
        let (_, second) = protect(directory.path()).unwrap();
        drop(first);
        assert_eq!(names(directory.path()).len(), IN_PROJECTS.len(), "the second still holds them");
        drop(second);
        assert_eq!(names(directory.path()), Vec::<String>::new());
    }

    #[test]
    fn what_a_person_made_is_protected_and_never_removed() {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join(".vscode")).unwrap();
        fs::write(directory.path().join(".mcp.json"), "{}\n").unwrap();
        fs::create_dir(directory.path().join(".venv")).unwrap();
        let (protected, placeholders) = protect(directory.path()).unwrap();
        for name in [".vscode", ".mcp.json", ".venv"] {
            assert!(protected.contains(&PathBuf::from(name)), "{name}");
        }
        drop(placeholders);
        assert_eq!(names(directory.path()), [".mcp.json", ".venv", ".vscode"]);
    }

    #[test]
    fn what_a_person_makes_of_a_placeholder_stays() {
        let directory = tempfile::tempdir().unwrap();
        let (_, placeholders) = protect(directory.path()).unwrap();
        fs::write(directory.path().join(".mcp.json"), "{\"mcpServers\": {}}").unwrap();
        fs::write(directory.path().join(".vscode/settings.json"), "{}").unwrap();
        drop(placeholders);
        assert_eq!(names(directory.path()), [".mcp.json", ".vscode"]);
    }

    #[test]
    fn what_a_killed_holder_left_is_removed_by_the_next() {
        let directory = tempfile::tempdir().unwrap();
        let (_, placeholders) = protect(directory.path()).unwrap();
        // As after SIGKILL: the locks are gone, the names are not.
        for placeholder in placeholders {
            flock(&placeholder.held, FlockOperation::Unlock).unwrap();
            std::mem::forget(placeholder);
        }
        drop(protect(directory.path()).unwrap());
        assert_eq!(names(directory.path()), Vec::<String>::new());
    }

    #[test]
    fn links_and_package_directories_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/etc", directory.path().join(".git")).unwrap();
        assert!(protect(directory.path()).is_err());
        let packages = directory.path().join("lib/site-packages/x");
        fs::create_dir_all(&packages).unwrap();
        assert!(protect(&packages).is_err());
    }
}
