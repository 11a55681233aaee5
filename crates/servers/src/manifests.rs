//! The manifests of a project: no link is followed to them, nor to the project where it is bound to something.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use ringfence_core::AllowedRoot;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, openat, openat2, statat};
use rustix::io::Errno;

/// A directory of the host that has manifests in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Manifests {
    directory: PathBuf,
    /// What it must lie in, if it is bound to something.
    within: Option<AllowedRoot>,
}

impl Manifests {
    pub(crate) fn new(directory: PathBuf, within: Option<AllowedRoot>) -> Self {
        Self { directory, within }
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        let found = self.open().and_then(|directory| statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW));
        found.is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::RegularFile)
    }

    /// A regular file beneath it, whose content is not ours. None if it is not there.
    pub(crate) fn read(&self, name: impl AsRef<Path>, most: u64) -> std::io::Result<Option<Vec<u8>>> {
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
        file.take(most + 1).read_to_end(&mut content)?;
        if content.len() as u64 > most {
            return Err(std::io::Error::new(std::io::ErrorKind::FileTooLarge, "it is too large"));
        }
        Ok(Some(content))
    }

    /// The names of all that lies in it, in order.
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
        match &self.within {
            Some(within) => openat(within.open(&self.directory)?, ".", flags, Mode::empty()),
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
    fn nothing_is_read_through_a_link() {
        let directory = tempfile::tempdir().unwrap();
        let outside = tempfile::NamedTempFile::new().unwrap();
        symlink(outside.path(), directory.path().join("package.json")).unwrap();
        let manifests = Manifests::new(directory.path().to_owned(), None);
        assert!(!manifests.has("package.json"));
        assert_eq!(manifests.read("package.json", 10).unwrap(), None);
        fs::write(directory.path().join("large"), "x".repeat(11)).unwrap();
        assert!(manifests.has("large") && manifests.read("large", 10).is_err());
        assert_eq!(manifests.read("missing", 10).unwrap(), None);
        assert_eq!(manifests.names().unwrap(), [".", "..", "large", "package.json"]);
    }

    #[test]
    fn a_project_that_was_exchanged_for_a_link_is_not_read() {
        let directory = tempfile::tempdir().unwrap();
        let base = directory.path().canonicalize().unwrap();
        for made in ["root/project", "outside"] {
            fs::create_dir_all(base.join(made)).unwrap();
            fs::write(base.join(made).join("package.json"), made).unwrap();
        }
        let within = AllowedRoot::new(base.join("root")).unwrap();
        let manifests = Manifests::new(base.join("root/project"), Some(within));
        assert_eq!(manifests.read("package.json", 100).unwrap().unwrap(), b"root/project");
        fs::rename(base.join("root/project"), base.join("root/before")).unwrap();
        symlink(base.join("outside"), base.join("root/project")).unwrap();
        assert!(!manifests.has("package.json"));
        assert!(manifests.read("package.json", 100).is_err() && manifests.names().is_err());
    }
}
