//! Names in a read-write volume that the guest must not write, because a program outside would run or
//! obey what they hold: git hooks, editor and MCP client settings, shell start files.
//!
//! A name that exists is mounted read-only over itself. One that does not is first made, as a
//! placeholder that says what it is, and is removed when the last sandbox on the volume ends: a name
//! that is not there cannot be mounted over. Only the top of a volume is protected.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::error::Error;

/// Obeyed in any project directory. A placeholder must be valid and mean nothing to who reads it.
const IN_PROJECTS: [(&str, Form); 6] = [
    (".git", Form::Directory),
    (".mcp.json", Form::File("{}\n")),
    (".vscode", Form::Directory),
    (".cursor", Form::Directory),
    (".claude", Form::Directory),
    (".envrc", Form::File(COMMENT)),
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

const COMMENT: &str = "# held by ringfence while a sandbox may write this directory; removed afterwards\n";

#[derive(Clone, Copy)]
enum Form {
    Directory,
    File(&'static str),
}

/// A name that is held for the length of a sandbox.
#[derive(Debug)]
pub(crate) struct Placeholder {
    path: PathBuf,
    held: File,
}

/// Gives the names to mount read-only in `volume`, and the placeholders made for those that were missing.
pub(crate) fn protect(volume: &Path) -> Result<(Vec<PathBuf>, Vec<Placeholder>), Error> {
    let real = fs::canonicalize(volume).unwrap_or_else(|_| volume.to_owned());
    if real.components().any(|part| NEVER.iter().any(|never| part.as_os_str() == *never)) {
        return Err(unprotectable(volume, "programs outside import what lies there; mount it `ro`"));
    }
    let mut names = Vec::new();
    let mut placeholders = Vec::new();
    for name in WHERE_PRESENT {
        if real.join(name).is_dir() {
            names.push(name.into());
        }
    }
    let home = is_home(&real);
    for (name, form) in IN_PROJECTS.iter().chain(&IN_HOMES) {
        let path = real.join(name);
        let may_be_made = home || IN_PROJECTS.iter().any(|(project, _)| project == name);
        match fs::symlink_metadata(&path) {
            Ok(metadata) if metadata.is_symlink() => {
                return Err(unprotectable(&path, "it is a link, which cannot be protected; mount the volume `ro`"));
            }
            Ok(_) => {
                placeholders.extend(Placeholder::adopt(&path, *form));
                names.push(name.into());
            }
            Err(error) if error.kind() == ErrorKind::NotFound && may_be_made => {
                match Placeholder::make(&path, *form) {
                    Ok(placeholder) => {
                        placeholders.push(placeholder);
                        names.push(name.into());
                    }
                    // Where we may not create, neither may the guest.
                    Err(error)
                        if matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem) => {}
                    Err(error) => return Err(unprotectable(&path, &error.to_string())),
                }
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(unprotectable(&path, &error.to_string())),
        }
    }
    Ok((names, placeholders))
}

impl Placeholder {
    fn make(path: &Path, form: Form) -> std::io::Result<Self> {
        match form {
            Form::Directory => fs::create_dir(path)?,
            Form::File(text) => {
                OpenOptions::new().write(true).create_new(true).mode(0o644).open(path)?.write_all(text.as_bytes())?;
            }
        }
        let held = File::open(path)?;
        held.set_modified(UNIX_EPOCH)?;
        flock(&held, FlockOperation::NonBlockingLockShared)?;
        Ok(Self { path: path.to_owned(), held })
    }

    /// Shares one that another sandbox made, or that a killed one left behind: it has the content of a
    /// placeholder and a time of change that nothing else has, so a person's own is never taken for one.
    fn adopt(path: &Path, form: Form) -> Option<Self> {
        let held = File::open(path).ok()?;
        if held.metadata().ok()?.modified().ok()? != UNIX_EPOCH {
            return None;
        }
        let ours = match form {
            Form::Directory => is_empty(path),
            Form::File(text) => {
                let mut found = String::new();
                (&held).take(4096).read_to_string(&mut found).is_ok_and(|_| found == text)
            }
        };
        (ours && flock(&held, FlockOperation::NonBlockingLockShared).is_ok())
            .then(|| Self { path: path.to_owned(), held })
    }
}

impl Drop for Placeholder {
    fn drop(&mut self) {
        // The last holder removes it: unlinking would take the mount out of the others' trees.
        if flock(&self.held, FlockOperation::NonBlockingLockExclusive).is_err() {
            return;
        }
        let same = |found: &fs::Metadata| self.held.metadata().is_ok_and(|held| held.ino() == found.ino());
        match fs::symlink_metadata(&self.path) {
            Ok(found) if found.is_dir() && same(&found) => drop(fs::remove_dir(&self.path)),
            Ok(found) if found.is_file() && same(&found) => drop(fs::remove_file(&self.path)),
            _ => {}
        }
    }
}

fn is_empty(directory: &Path) -> bool {
    fs::read_dir(directory).is_ok_and(|mut entries| entries.next().is_none())
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
