//! A directory of the host that a volume must lie in, known by what it is and not only by its name.
//!
//! Whatever lies in it is opened beneath its own descriptor, by the kernel's rule that no step may leave it and no link
//! is followed: a name that is exchanged while it is opened leads to an error, never elsewhere.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, Stat, openat2};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

/// A directory that was there when it was named, and must still be the same whenever it is used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AllowedRoot {
    path: PathBuf,
    device: u64,
    inode: u64,
}

const NO_LINKS: ResolveFlags = ResolveFlags::NO_SYMLINKS.union(ResolveFlags::NO_MAGICLINKS);

impl AllowedRoot {
    /// Takes a directory by its real path: one with a link in it is refused.
    pub fn new(path: PathBuf) -> Result<Self, Errno> {
        let opened = open_directory(&path)?;
        let (device, inode) = identity(&rustix::fs::fstat(&opened)?);
        Ok(Self { path, device, inode })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether a path is by its name beneath this directory; what it leads to is seen when it is opened.
    pub fn contains_path(&self, path: &Path) -> bool {
        path.starts_with(&self.path)
    }

    /// Opens something in it, or it itself, as a mere place (`O_PATH`).
    ///
    /// `ESTALE` if the directory is no longer the one that was named, `ELOOP` if a link is on the way, `EXDEV` if the
    /// path is not beneath it.
    pub fn open(&self, path: &Path) -> Result<OwnedFd, Errno> {
        let beneath = path.strip_prefix(&self.path).map_err(|_| Errno::XDEV)?;
        let root = open_directory(&self.path)?;
        if identity(&rustix::fs::fstat(&root)?) != (self.device, self.inode) {
            return Err(Errno::STALE);
        }
        let beneath = if beneath.as_os_str().is_empty() { Path::new(".") } else { beneath };
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = openat2(&root, beneath, flags, Mode::empty(), ResolveFlags::BENEATH | NO_LINKS)?;
        // One at the very end would be opened as itself.
        match FileType::from_raw_mode(rustix::fs::fstat(&opened)?.st_mode) {
            FileType::Symlink => Err(Errno::LOOP),
            _ => Ok(opened),
        }
    }

    /// Why [`Self::open`] refused.
    pub fn explain(&self, errno: Errno) -> String {
        let root = self.path.display();
        match errno {
            Errno::LOOP => format!("a link is on the way to it; give its real path, beneath the allowed root {root}"),
            Errno::XDEV => format!("it does not lie beneath the allowed root {root}"),
            Errno::STALE => format!("the allowed root {root} is no longer the directory that it was at the start"),
            Errno::NOENT => "it is not there; make it first, since a volume is never created".into(),
            Errno::NOSYS => "this needs openat2, of Linux 5.6 or newer".into(),
            _ => "it cannot be opened; check the path".into(),
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

    fn real(directory: &tempfile::TempDir) -> PathBuf {
        directory.path().canonicalize().unwrap()
    }

    #[test]
    fn what_lies_in_it_is_opened_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let base = real(&directory);
        let root = base.join("root");
        std::fs::create_dir_all(root.join("a/b")).unwrap();
        std::fs::create_dir(base.join("rootless")).unwrap();
        std::os::unix::fs::symlink(base.join("rootless"), root.join("out")).unwrap();
        std::os::unix::fs::symlink("a", root.join("inside")).unwrap();
        let within = AllowedRoot::new(root.clone()).unwrap();
        for inside in ["", "a", "a/b"] {
            assert!(within.open(&root.join(inside)).is_ok(), "{inside}");
        }
        for (path, expected) in [
            (root.join("out"), Errno::LOOP),
            (root.join("inside/b"), Errno::LOOP),
            (root.join("a/../../rootless"), Errno::XDEV),
            (base.join("rootless"), Errno::XDEV),
            (root.join("missing"), Errno::NOENT),
        ] {
            assert_eq!(within.open(&path).err(), Some(expected), "{}", path.display());
        }
    }

    #[test]
    fn a_directory_in_its_place_is_not_it() {
        let directory = tempfile::tempdir().unwrap();
        let base = real(&directory);
        let root = base.join("root");
        std::fs::create_dir(&root).unwrap();
        let within = AllowedRoot::new(root.clone()).unwrap();
        std::fs::rename(&root, base.join("before")).unwrap();
        std::fs::create_dir(&root).unwrap();
        assert_eq!(within.open(&root).err(), Some(Errno::STALE));
        std::fs::remove_dir(&root).unwrap();
        std::os::unix::fs::symlink(base.join("before"), &root).unwrap();
        assert_eq!(within.open(&root).err(), Some(Errno::LOOP));
    }

    #[test]
    fn it_is_named_by_its_real_path() {
        let directory = tempfile::tempdir().unwrap();
        let base = real(&directory);
        std::os::unix::fs::symlink(&base, base.join("link")).unwrap();
        assert_eq!(AllowedRoot::new(base.join("link")).err(), Some(Errno::LOOP));
        assert_eq!(AllowedRoot::new(base.join("missing")).err(), Some(Errno::NOENT));
    }
}
