//! A directory of the host that volumes are confined to.
//!
//! The directory is identified by device and inode, not only by its path. Paths beneath it are opened relative to its
//! descriptor with `RESOLVE_BENEATH` and without symbolic links (openat2(2)). If a guest replaces a part of the path
//! during the lookup, the lookup fails; it never leads outside of the directory.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, Stat, openat2};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

/// An existing directory, with the identity that it had when this value was created.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AllowedRoot {
    path: PathBuf,
    device: u64,
    inode: u64,
}

const NO_LINKS: ResolveFlags = ResolveFlags::NO_SYMLINKS.union(ResolveFlags::NO_MAGICLINKS);

impl AllowedRoot {
    /// Identifies a directory by its real path. A path that contains a symbolic link is an error (`ELOOP`).
    pub fn new(path: PathBuf) -> Result<Self, Errno> {
        let opened = open_directory(&path)?;
        let (device, inode) = identity(&rustix::fs::fstat(&opened)?);
        Ok(Self { path, device, inode })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether a path is lexically beneath this directory. Only [`Self::open`] checks where it leads.
    pub fn contains_path(&self, path: &Path) -> bool {
        path.starts_with(&self.path)
    }

    /// Opens the directory or a path beneath it with `O_PATH`.
    ///
    /// Errors: `ESTALE` if another directory has replaced this one, `ELOOP` if the path contains a symbolic link, `EXDEV`
    /// if the path is not beneath the directory.
    pub fn open(&self, path: &Path) -> Result<OwnedFd, Errno> {
        let beneath = path.strip_prefix(&self.path).map_err(|_| Errno::XDEV)?;
        let root = open_directory(&self.path)?;
        if identity(&rustix::fs::fstat(&root)?) != (self.device, self.inode) {
            return Err(Errno::STALE);
        }
        let beneath = if beneath.as_os_str().is_empty() { Path::new(".") } else { beneath };
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = openat2(&root, beneath, flags, Mode::empty(), ResolveFlags::BENEATH | NO_LINKS)?;
        // `O_PATH | O_NOFOLLOW` opens a symbolic link in the last component instead of failing.
        match FileType::from_raw_mode(rustix::fs::fstat(&opened)?.st_mode) {
            FileType::Symlink => Err(Errno::LOOP),
            _ => Ok(opened),
        }
    }

    /// Explains an error of [`Self::open`] to a user.
    pub fn explain(&self, errno: Errno) -> String {
        let root = self.path.display();
        match errno {
            Errno::LOOP => {
                format!("the path contains a symbolic link; give its real path beneath the allowed root {root}")
            }
            Errno::XDEV => format!("the path is not beneath the allowed root {root}"),
            Errno::STALE => format!("the allowed root {root} was replaced by another directory since the start"),
            Errno::NOENT => "the path does not exist; create it first, since ringfence never creates a volume".into(),
            Errno::NOSYS => "the system call openat2 is missing; use Linux 5.6 or newer".into(),
            _ => "the path cannot be opened; check it and its permissions".into(),
        }
    }
}

fn open_directory(path: &Path) -> Result<OwnedFd, Errno> {
    openat2(CWD, path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty(), NO_LINKS)
}

fn identity(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn real_path(directory: &tempfile::TempDir) -> PathBuf {
        directory.path().canonicalize().unwrap()
    }

    #[test]
    fn only_paths_beneath_the_root_are_opened() {
        let directory = tempfile::tempdir().unwrap();
        let base = real_path(&directory);
        let root = base.join("root");
        std::fs::create_dir_all(root.join("a/b")).unwrap();
        std::fs::create_dir(base.join("root-sibling")).unwrap();
        std::os::unix::fs::symlink(base.join("root-sibling"), root.join("out")).unwrap();
        std::os::unix::fs::symlink("a", root.join("inside")).unwrap();
        let allowed = AllowedRoot::new(root.clone()).unwrap();
        for beneath in ["", "a", "a/b"] {
            assert!(allowed.open(&root.join(beneath)).is_ok(), "{beneath}");
        }
        for (path, expected) in [
            (root.join("out"), Errno::LOOP),
            (root.join("inside/b"), Errno::LOOP),
            (root.join("a/../../root-sibling"), Errno::XDEV),
            (base.join("root-sibling"), Errno::XDEV),
            (root.join("missing"), Errno::NOENT),
        ] {
            assert_eq!(allowed.open(&path).err(), Some(expected), "{}", path.display());
        }
    }

    #[test]
    fn replaced_root_is_rejected() {
        let directory = tempfile::tempdir().unwrap();
        let base = real_path(&directory);
        let root = base.join("root");
        std::fs::create_dir(&root).unwrap();
        let allowed = AllowedRoot::new(root.clone()).unwrap();
        std::fs::rename(&root, base.join("before")).unwrap();
        std::fs::create_dir(&root).unwrap();
        assert_eq!(allowed.open(&root).err(), Some(Errno::STALE));
        std::fs::remove_dir(&root).unwrap();
        std::os::unix::fs::symlink(base.join("before"), &root).unwrap();
        assert_eq!(allowed.open(&root).err(), Some(Errno::LOOP));
    }

    #[test]
    fn root_must_be_a_real_path() {
        let directory = tempfile::tempdir().unwrap();
        let base = real_path(&directory);
        std::os::unix::fs::symlink(&base, base.join("link")).unwrap();
        assert_eq!(AllowedRoot::new(base.join("link")).err(), Some(Errno::LOOP));
        assert_eq!(AllowedRoot::new(base.join("missing")).err(), Some(Errno::NOENT));
    }
}
