//! Reads the manifests of a project without following links to them. If a scope confines the server, links to the
//! project's directory are not followed either.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use ringfence_core::AllowedRoot;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, openat, openat2, statat};
use rustix::io::Errno;

/// A directory of the host that contains manifests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ManifestDirectory {
    directory: PathBuf,
    /// The allowed root that must contain it, if a scope confines the server.
    allowed_root: Option<AllowedRoot>,
}

impl ManifestDirectory {
    pub(crate) fn new(directory: PathBuf, allowed_root: Option<AllowedRoot>) -> Self {
        Self { directory, allowed_root }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.directory
    }

    pub(crate) fn has_file(&self, name: &str) -> bool {
        let found = self.open().and_then(|directory| statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW));
        found.is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::RegularFile)
    }

    /// Reads a regular file beneath the directory. Returns `None` if there is no such file, or a link in its place.
    pub(crate) fn read(&self, name: impl AsRef<Path>, max_bytes: u64) -> std::io::Result<Option<Vec<u8>>> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let file = match openat2(self.open()?, name.as_ref(), flags, Mode::empty(), resolve) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT | Errno::LOOP | Errno::NOTDIR) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        };
        if !file.metadata()?.is_file() {
            return Ok(None);
        }
        let mut content = Vec::new();
        file.take(max_bytes + 1).read_to_end(&mut content)?;
        if content.len() as u64 > max_bytes {
            return Err(std::io::Error::new(std::io::ErrorKind::FileTooLarge, "the file is too large"));
        }
        Ok(Some(content))
    }

    /// Returns the names in the directory, in order.
    pub(crate) fn names(&self) -> std::io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(self.open()?)? {
            names.extend(entry?.file_name().to_str().ok().map(str::to_owned));
        }
        names.sort();
        Ok(names)
    }

    fn open(&self) -> rustix::io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match &self.allowed_root {
            Some(root) => openat(root.open(&self.directory)?, ".", flags, Mode::empty()),
            None => openat(CWD, &self.directory, flags, Mode::empty()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_to_manifests_are_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let outside = tempfile::NamedTempFile::new().unwrap();
        symlink(outside.path(), directory.path().join("package.json")).unwrap();
        let manifests = ManifestDirectory::new(directory.path().to_owned(), None);
        assert!(!manifests.has_file("package.json"));
        assert_eq!(manifests.read("package.json", 10).unwrap(), None);
        fs::write(directory.path().join("large"), "x".repeat(11)).unwrap();
        assert!(manifests.has_file("large") && manifests.read("large", 10).is_err());
        assert_eq!(manifests.read("missing", 10).unwrap(), None);
        assert_eq!(manifests.names().unwrap(), [".", "..", "large", "package.json"]);
    }

    #[test]
    fn project_that_was_replaced_by_link_is_not_read() {
        let directory = tempfile::tempdir().unwrap();
        let base = directory.path().canonicalize().unwrap();
        for path in ["root/project", "outside"] {
            fs::create_dir_all(base.join(path)).unwrap();
            fs::write(base.join(path).join("package.json"), path).unwrap();
        }
        let root = AllowedRoot::new(base.join("root")).unwrap();
        let manifests = ManifestDirectory::new(base.join("root/project"), Some(root));
        assert_eq!(manifests.read("package.json", 100).unwrap().unwrap(), b"root/project");
        fs::rename(base.join("root/project"), base.join("root/before")).unwrap();
        symlink(base.join("outside"), base.join("root/project")).unwrap();
        assert!(!manifests.has_file("package.json"));
        assert!(manifests.read("package.json", 100).is_err() && manifests.names().is_err());
    }
}
