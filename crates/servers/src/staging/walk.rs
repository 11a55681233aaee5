//! Reads a project from open directory descriptors, name by name. Replacing a name by a symbolic link during the copy
//! therefore has no effect.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, RawMode, fstat, openat, readlinkat, statat};
use rustix::io::Errno;

use super::archive::Archive;
use super::{CopyLimits, EXCLUDED_NAMES, Project, StagingError};

/// Maximum depth of directories.
const MAX_DEPTH: usize = 64;

/// Follows no link, and does not block on a FIFO without a writer.
const OPEN_FLAGS: OFlags = OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

pub(super) struct Walk<'a> {
    host: &'a Path,
    project: &'a Project,
    limits: CopyLimits,
    bytes: u64,
    files: u64,
}

impl<'a> Walk<'a> {
    pub(super) fn new(host: &'a Path, project: &'a Project, limits: CopyLimits) -> Self {
        Self { host, project, limits, bytes: 0, files: 0 }
    }

    /// Writes the whole project to the archive, beneath `top`.
    pub(super) fn copy(mut self, archive: &mut Archive<impl Write>, top: &Path) -> Result<(), StagingError> {
        let host = self.host;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = match &self.project.allowed_root {
            Some(root) => root.open(host).and_then(|opened| openat(&opened, ".", flags, Mode::empty())),
            None => openat(CWD, host, flags, Mode::empty()),
        };
        let directory = directory.map_err(unreadable(host))?;
        self.directory(archive, &directory, Path::new(""), top, 0)
    }

    fn directory(
        &mut self,
        archive: &mut Archive<impl Write>,
        directory: &OwnedFd,
        below: &Path,
        top: &Path,
        depth: usize,
    ) -> Result<(), StagingError> {
        let host = self.host.join(below);
        if depth > MAX_DEPTH {
            return Err(StagingError::TooDeep { path: host });
        }
        for name in self.names(directory, &host)? {
            let path = below.join(&name);
            self.entry(archive, directory, &name, &path, top, depth)?;
        }
        Ok(())
    }

    /// Returns the names in a directory in order, so that the same project always gives the same copy.
    fn names(&mut self, directory: &OwnedFd, host: &Path) -> Result<Vec<OsString>, StagingError> {
        let mut names = Vec::new();
        for entry in Dir::read_from(directory).map_err(unreadable(host))? {
            let name = OsString::from_vec(entry.map_err(unreadable(host))?.file_name().to_bytes().to_vec());
            let is_excluded = EXCLUDED_NAMES.iter().any(|excluded| name == *excluded);
            if name == OsStr::new(".") || name == OsStr::new("..") || is_excluded {
                continue;
            }
            self.count_file()?;
            names.push(name);
        }
        names.sort();
        Ok(names)
    }

    fn entry(
        &mut self,
        archive: &mut Archive<impl Write>,
        directory: &OwnedFd,
        name: &OsStr,
        path: &Path,
        top: &Path,
        depth: usize,
    ) -> Result<(), StagingError> {
        let host = self.host.join(path);
        let guest = top.join(path);
        let found = match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            // The file was removed meanwhile.
            Err(Errno::NOENT) => return Ok(()),
            found => found.map_err(unreadable(&host))?,
        };
        match FileType::from_raw_mode(found.st_mode) {
            FileType::Directory => {
                let opened = openat(directory, name, OPEN_FLAGS | OFlags::DIRECTORY, Mode::empty());
                let opened = opened.map_err(unreadable(&host))?;
                let written = archive.directory(&guest, permissions(found.st_mode, 0o700));
                written.map_err(StagingError::SendFailed)?;
                self.directory(archive, &opened, path, top, depth + 1)
            }
            FileType::RegularFile => {
                let opened = openat(directory, name, OPEN_FLAGS, Mode::empty()).map_err(unreadable(&host))?;
                // The name may have been replaced since `statat`.
                let found = fstat(&opened).map_err(unreadable(&host))?;
                if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
                    return Ok(());
                }
                let size = u64::try_from(found.st_size).unwrap_or(0);
                self.count_bytes(size)?;
                let (mode, modified) = (permissions(found.st_mode, 0o600), u64::try_from(found.st_mtime).unwrap_or(0));
                archive.file(&guest, mode, modified, size, File::from(opened)).map_err(StagingError::SendFailed)
            }
            FileType::Symlink => {
                let target = readlinkat(directory, name, Vec::new()).map_err(unreadable(&host))?;
                let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
                // An absolute link to a file of the project gets the path of that file inside the sandbox.
                let target = match target.strip_prefix(self.host) {
                    Ok(relative) => self.project.guest.join(relative),
                    Err(_) => target,
                };
                archive.link(&guest, &target).map_err(StagingError::SendFailed)
            }
            // Sockets, FIFOs and devices are not copied.
            _ => Ok(()),
        }
    }

    fn count_bytes(&mut self, bytes: u64) -> Result<(), StagingError> {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes > self.limits.bytes {
            return Err(StagingError::TooManyBytes { path: self.host.to_owned(), limit: self.limits.bytes });
        }
        Ok(())
    }

    fn count_file(&mut self) -> Result<(), StagingError> {
        self.files += 1;
        if self.files > self.limits.files {
            return Err(StagingError::TooManyFiles { path: self.host.to_owned(), limit: self.limits.files });
        }
        Ok(())
    }
}

/// Returns the permissions without set-user-ID, set-group-ID and sticky bits. The owner always gets those of `minimum`.
fn permissions(mode: RawMode, minimum: u32) -> u32 {
    mode & 0o777 | minimum
}

fn unreadable(path: &Path) -> impl FnOnce(Errno) -> StagingError {
    let path = path.to_owned();
    move |errno| StagingError::Unreadable { path, source: errno.into() }
}
