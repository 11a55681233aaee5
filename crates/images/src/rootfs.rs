//! A root file system while layers are applied to it.
//!
//! Nothing outside of its directory is touched. The kernel resolves the parent of every entry as if the directory were
//! the root (`openat2` with `RESOLVE_IN_ROOT`), also through links of earlier entries, and never follows the entry itself.
//! Existing files are never opened: an entry with the same name is removed first, so that nothing is written through a
//! hard link. Owners, extended attributes and the setuid and setgid bits of an image are ignored.

mod entry_path;
mod removal;

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, Timespec, Timestamps, fchmod, fstat, futimens, linkat, mkdirat,
    openat, openat2, statat, symlinkat,
};
use rustix::io::Errno;

use crate::error::ImageError;
use crate::limits::{Limits, MAX_DEPTH};
pub(crate) use entry_path::EntryPath;
use removal::RemovalOptions;

/// Mode of directories that no entry describes.
const DEFAULT_DIRECTORY_MODE: u32 = 0o755;

/// Flags that open a directory without following a link.
const OPEN_DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Maximum number of attempts to resolve a path while files on the host are renamed.
const MAX_RESOLVE_ATTEMPTS: usize = 1000;

pub(crate) struct Rootfs {
    root: OwnedFd,
    /// The depth of each directory by its inode. Links can lead deeper than the length of a path suggests.
    depths: HashMap<u64, u32>,
    /// Inodes that the current layer has created. Its whiteouts hide only files of lower layers.
    layer_inodes: HashSet<u64>,
    entries_left: u64,
    visits_left: Cell<u64>,
}

impl Rootfs {
    /// Opens an empty directory.
    pub(crate) fn open(root: &Path, limits: Limits) -> Result<Self, ImageError> {
        let opened = openat(CWD, root, OPEN_DIRECTORY, Mode::empty()).and_then(|root| Ok((fstat(&root)?.st_ino, root)));
        let (inode, root) =
            opened.map_err(|errno| ImageError::Cache { path: root.to_owned(), source: errno.into() })?;
        Ok(Self {
            root,
            depths: [(inode, 0)].into(),
            layer_inodes: HashSet::new(),
            entries_left: limits.entries,
            visits_left: Cell::new(limits.visits),
        })
    }

    /// Returns the number of names in the root directory.
    pub(crate) fn count_top_level_names(&self) -> io::Result<usize> {
        let top = openat(&self.root, ".", OPEN_DIRECTORY, Mode::empty())?;
        Ok(removal::list_names(&top)?.len())
    }

    /// Starts the next layer.
    pub(crate) fn begin_layer(&mut self) {
        self.layer_inodes.clear();
    }

    /// Counts an entry; returns `None` if the limit is reached.
    pub(crate) fn count_entry(&mut self) -> Option<()> {
        self.entries_left = self.entries_left.checked_sub(1)?;
        Some(())
    }

    /// Adds a directory, or changes the mode of an existing one.
    pub(crate) fn add_directory(&mut self, path: &EntryPath<'_>, mode: u32) -> io::Result<()> {
        let Some(name) = path.name() else { return Ok(()) };
        let parent = self.open_or_create_parent(path)?;
        let directory = match file_type(&parent, name)? {
            Some(FileType::Directory) => openat(&parent, name, OPEN_DIRECTORY, Mode::empty())?,
            _ => self.create_directory(&parent, name)?,
        };
        set_mode(&directory, mode & 0o1777 | 0o700)?;
        self.layer_inodes.insert(fstat(&directory)?.st_ino);
        Ok(())
    }

    /// Adds a file with `size` bytes of content.
    pub(crate) fn add_file(
        &mut self,
        path: &EntryPath<'_>,
        mode: u32,
        modified_s: u64,
        size: u64,
        content: &mut dyn Read,
    ) -> io::Result<()> {
        let (parent, name) = self.remove_existing(path)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = File::from(openat(&parent, name, flags, Mode::RUSR | Mode::WUSR)?);
        self.layer_inodes.insert(fstat(&file)?.st_ino);
        if io::copy(content, &mut file)? != size {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        set_mode(&file, mode & 0o777)?;
        // Python compares the time of the source with the time in its compiled file.
        let time = Timespec { tv_sec: i64::try_from(modified_s).unwrap_or_default(), tv_nsec: 0 };
        // A time that this file system cannot store is not worth an error.
        let _ = futimens(&file, &Timestamps { last_access: time, last_modification: time });
        Ok(())
    }

    /// Adds a symbolic link with any target: links are only followed within the root.
    pub(crate) fn add_symlink(&mut self, path: &EntryPath<'_>, target: &[u8]) -> io::Result<()> {
        let (parent, name) = self.remove_existing(path)?;
        symlinkat(OsStr::from_bytes(target), &parent, name)?;
        self.layer_inodes.insert(statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW)?.st_ino);
        Ok(())
    }

    /// Adds a hard link to an existing file.
    pub(crate) fn add_hard_link(&mut self, path: &EntryPath<'_>, target: &EntryPath<'_>) -> io::Result<()> {
        let target_name = target.name().ok_or(Errno::ISDIR)?;
        let target_parent = self.open_directory(&target.parent())?;
        let (parent, name) = self.remove_existing(path)?;
        linkat(&target_parent, target_name, &parent, name, AtFlags::empty())?;
        self.layer_inodes.insert(statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW)?.st_ino);
        Ok(())
    }

    /// Removes the file or directory of lower layers at a path.
    pub(crate) fn hide(&self, path: &EntryPath<'_>) -> io::Result<()> {
        let Some(name) = path.name() else { return Ok(()) };
        match self.open_directory(&path.parent()) {
            Ok(parent) => Ok(removal::remove(parent.as_fd(), name, self.remove_lower_layers())?),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Removes everything of lower layers in the directory that contains a path.
    pub(crate) fn hide_siblings(&self, path: &EntryPath<'_>) -> io::Result<()> {
        match self.open_directory(&path.parent()) {
            Ok(parent) => {
                let directory = openat(&parent, ".", OPEN_DIRECTORY, Mode::empty())?;
                Ok(removal::remove_contents(&directory, self.remove_lower_layers())?)
            }
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    fn remove_lower_layers(&self) -> RemovalOptions<'_> {
        RemovalOptions { retained_inodes: Some(&self.layer_inodes), visits_left: &self.visits_left }
    }

    fn remove_all_layers(&self) -> RemovalOptions<'_> {
        RemovalOptions { retained_inodes: None, visits_left: &self.visits_left }
    }

    /// Removes an existing entry at a path; returns the parent directory and the name.
    fn remove_existing<'a>(&mut self, path: &EntryPath<'a>) -> io::Result<(OwnedFd, &'a OsStr)> {
        let name = path.name().ok_or(Errno::ISDIR)?;
        let parent = self.open_or_create_parent(path)?;
        removal::remove(parent.as_fd(), name, self.remove_all_layers())?;
        Ok((parent, name))
    }

    /// Opens the directory that contains an entry; creates missing directories.
    fn open_or_create_parent(&mut self, path: &EntryPath<'_>) -> io::Result<OwnedFd> {
        let parents = path.parents();
        match self.open_directory(&path.parent()) {
            Err(Errno::NOENT) => {}
            opened => return Ok(opened?),
        }
        let mut current = self.open_directory(Path::new("."))?;
        for depth in 1..=parents.len() {
            current = match self.open_directory(&parents[..depth].iter().collect::<PathBuf>()) {
                Err(Errno::NOENT) => {
                    self.count_entry().ok_or_else(|| io::Error::other("the image has too many directories"))?;
                    let created = self.create_directory(&current, parents[depth - 1])?;
                    set_mode(&created, DEFAULT_DIRECTORY_MODE)?;
                    self.layer_inodes.insert(fstat(&created)?.st_ino);
                    created
                }
                opened => opened?,
            };
        }
        Ok(current)
    }

    /// Creates a directory in place of any existing entry with its name.
    fn create_directory(&mut self, parent: &OwnedFd, name: &OsStr) -> io::Result<OwnedFd> {
        let depth = self.depths.get(&fstat(parent)?.st_ino).map_or(MAX_DEPTH, |parent_depth| parent_depth + 1);
        if depth >= MAX_DEPTH {
            return Err(io::Error::other(format!("directories are nested more than {MAX_DEPTH} levels deep")));
        }
        removal::remove(parent.as_fd(), name, self.remove_all_layers())?;
        mkdirat(parent, name, Mode::RWXU)?;
        let created = openat(parent, name, OPEN_DIRECTORY, Mode::empty())?;
        self.depths.insert(fstat(&created)?.st_ino, depth);
        Ok(created)
    }

    /// Opens a directory as `O_PATH`, resolved with this directory as the root.
    fn open_directory(&self, directory: &Path) -> Result<OwnedFd, Errno> {
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        // The kernel refuses `..` in a link while any file on the host is renamed (openat2(2), EAGAIN).
        for _ in 0..MAX_RESOLVE_ATTEMPTS {
            match openat2(&self.root, directory, flags, Mode::empty(), resolve) {
                Err(Errno::AGAIN) => std::thread::yield_now(),
                opened => return opened,
            }
        }
        Err(Errno::AGAIN)
    }
}

fn file_type(parent: impl AsFd, name: &OsStr) -> Result<Option<FileType>, Errno> {
    match statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(FileType::from_raw_mode(stat.st_mode))),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Sets a mode, independent of the umask of this process.
fn set_mode(file: impl AsFd, mode: u32) -> Result<(), Errno> {
    fchmod(file, Mode::from_raw_mode(mode))
}
