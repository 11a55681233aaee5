//! Reads a project, name by name from open directories: whoever exchanges a name for a link meanwhile gains nothing.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, RawMode, fstat, openat, readlinkat, statat};
use rustix::io::Errno;

use super::archive::Archive;
use super::{Bounds, LEFT_OUT, Project, StageError};

/// Directories within directories; deeper trees are not projects.
const MOST_DEPTH: usize = 64;

/// Never waits, as for a pipe that nobody writes, and follows nothing.
const CAREFUL: OFlags = OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

pub(super) struct Walk<'a> {
    host: &'a Path,
    project: &'a Project,
    bounds: Bounds,
    bytes: u64,
    files: u64,
}

impl<'a> Walk<'a> {
    pub(super) fn new(host: &'a Path, project: &'a Project, bounds: Bounds) -> Self {
        Self { host, project, bounds, bytes: 0, files: 0 }
    }

    /// Writes all of it beneath `top`.
    pub(super) fn copy(mut self, archive: &mut Archive<impl Write>, top: &Path) -> Result<(), StageError> {
        let host = self.host;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = match &self.project.within {
            Some(within) => within.open(host).and_then(|place| openat(&place, ".", flags, Mode::empty())),
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
    ) -> Result<(), StageError> {
        let host = self.host.join(below);
        if depth > MOST_DEPTH {
            return Err(StageError::TooDeep { path: host });
        }
        for name in self.names(directory, &host)? {
            let path = below.join(&name);
            self.entry(archive, directory, &name, &path, top, depth)?;
        }
        Ok(())
    }

    /// In order, so that the same project always gives the same copy.
    fn names(&mut self, directory: &OwnedFd, host: &Path) -> Result<Vec<OsString>, StageError> {
        let mut names = Vec::new();
        for entry in Dir::read_from(directory).map_err(unreadable(host))? {
            let name = OsString::from_vec(entry.map_err(unreadable(host))?.file_name().to_bytes().to_vec());
            let is_left_out = LEFT_OUT.iter().any(|left_out| name == *left_out);
            if name == OsStr::new(".") || name == OsStr::new("..") || is_left_out {
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
    ) -> Result<(), StageError> {
        let host = self.host.join(path);
        let guest = top.join(path);
        let found = match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            // It is gone again.
            Err(Errno::NOENT) => return Ok(()),
            found => found.map_err(unreadable(&host))?,
        };
        match FileType::from_raw_mode(found.st_mode) {
            FileType::Directory => {
                let opened = openat(directory, name, CAREFUL | OFlags::DIRECTORY, Mode::empty());
                let opened = opened.map_err(unreadable(&host))?;
                let written = archive.directory(&guest, permissions(found.st_mode, 0o700));
                written.map_err(StageError::NotTaken)?;
                self.directory(archive, &opened, path, top, depth + 1)
            }
            FileType::RegularFile => {
                let opened = openat(directory, name, CAREFUL, Mode::empty()).map_err(unreadable(&host))?;
                // What was opened counts, not what had that name before.
                let found = fstat(&opened).map_err(unreadable(&host))?;
                if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
                    return Ok(());
                }
                let size = u64::try_from(found.st_size).unwrap_or(0);
                self.count_bytes(size)?;
                let (mode, modified) = (permissions(found.st_mode, 0o600), u64::try_from(found.st_mtime).unwrap_or(0));
                archive.file(&guest, mode, modified, size, File::from(opened)).map_err(StageError::NotTaken)
            }
            FileType::Symlink => {
                let target = readlinkat(directory, name, Vec::new()).map_err(unreadable(&host))?;
                let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
                // A link to the project's own files by their place on the host leads to them inside, too.
                let target = match target.strip_prefix(self.host) {
                    Ok(inside) => self.project.guest.join(inside),
                    Err(_) => target,
                };
                archive.link(&guest, &target).map_err(StageError::NotTaken)
            }
            // Sockets, pipes and devices are no files.
            _ => Ok(()),
        }
    }

    fn count_bytes(&mut self, bytes: u64) -> Result<(), StageError> {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes > self.bounds.bytes {
            return Err(StageError::TooLarge { path: self.host.to_owned(), most: self.bounds.bytes });
        }
        Ok(())
    }

    fn count_file(&mut self) -> Result<(), StageError> {
        self.files += 1;
        if self.files > self.bounds.files {
            return Err(StageError::TooMany { path: self.host.to_owned(), most: self.bounds.files });
        }
        Ok(())
    }
}

/// The owner must be able to use it; nobody gets rights to run as somebody else.
fn permissions(mode: RawMode, least: u32) -> u32 {
    mode & 0o777 | least
}

fn unreadable(path: &Path) -> impl FnOnce(Errno) -> StageError {
    let path = path.to_owned();
    move |errno| StageError::Unreadable { path, source: errno.into() }
}
