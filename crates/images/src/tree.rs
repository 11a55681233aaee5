//! A root file system while it is unpacked, layer over layer.
//!
//! Nothing outside of its directory is touched: the way to an entry is resolved by the kernel as if the directory were
//! the root (`openat2` with `RESOLVE_IN_ROOT`), also through links that an earlier entry has made, and the entry itself is
//! never followed. No file is opened that was there before: what is in the way is removed, so nothing is written through
//! a hard link. Ids, attributes and the bits for setuid and setgid are not taken over.

mod inside;
mod removal;

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, Timespec, Timestamps, fchmod, fstat, futimens, linkat, mkdirat,
    openat, openat2, statat, symlinkat,
};
use rustix::io::Errno;

use super::bounds::{Bounds, DEPTH};
use super::error::ImageError;
pub(super) use inside::Inside;
use removal::Spared;

/// Of directories that no entry describes.
const USUAL: u32 = 0o755;

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

pub(super) struct Tree {
    root: OwnedFd,
    /// How deep each directory really lies, by its inode: links can lead deeper than any path is long.
    depths: HashMap<u64, u32>,
    /// What the present layer has made, by inode: it takes away only what lower ones have.
    made: HashSet<u64>,
    entries_left: u64,
    visits_left: Cell<u64>,
}

impl Tree {
    /// In an empty directory.
    pub(super) fn new(root: &Path, bounds: Bounds) -> Result<Self, ImageError> {
        let opened = openat(CWD, root, DIRECTORY, Mode::empty()).and_then(|root| Ok((fstat(&root)?.st_ino, root)));
        let (inode, root) =
            opened.map_err(|errno| ImageError::Cache { path: root.to_owned(), source: errno.into() })?;
        Ok(Self {
            root,
            depths: [(inode, 0)].into(),
            made: HashSet::new(),
            entries_left: bounds.entries,
            visits_left: Cell::new(bounds.visits),
        })
    }

    /// How many there are.
    pub(super) fn top_names(&self) -> io::Result<usize> {
        let top = openat(&self.root, ".", DIRECTORY, Mode::empty())?;
        Ok(removal::names(&top)?.len())
    }

    pub(super) fn begin_layer(&mut self) {
        self.made.clear();
    }

    /// Takes the place of one more entry, if there is one.
    pub(super) fn count(&mut self) -> Option<()> {
        self.entries_left = self.entries_left.checked_sub(1)?;
        Some(())
    }

    pub(super) fn directory(&mut self, inside: &Inside<'_>, mode: u32) -> io::Result<()> {
        let Some(name) = inside.name() else { return Ok(()) };
        let parent = self.parent(inside)?;
        let directory = match kind(&parent, name)? {
            Some(FileType::Directory) => openat(&parent, name, DIRECTORY, Mode::empty())?,
            _ => self.make_directory(&parent, name)?,
        };
        set_mode(&directory, mode & 0o1777 | 0o700)?;
        self.made.insert(fstat(&directory)?.st_ino);
        Ok(())
    }

    pub(super) fn file(
        &mut self,
        inside: &Inside<'_>,
        mode: u32,
        modified: u64,
        size: u64,
        content: &mut dyn Read,
    ) -> io::Result<()> {
        let (parent, name) = self.clear(inside)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = File::from(openat(&parent, name, flags, Mode::RUSR | Mode::WUSR)?);
        self.made.insert(fstat(&file)?.st_ino);
        if io::copy(content, &mut file)? != size {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        set_mode(&file, mode & 0o777)?;
        // Python trusts what it has compiled by the time of the source.
        let time = Timespec { tv_sec: i64::try_from(modified).unwrap_or_default(), tv_nsec: 0 };
        // A time that this file system cannot hold is of no weight.
        let _ = futimens(&file, &Timestamps { last_access: time, last_modification: time });
        Ok(())
    }

    /// Whatever it leads to: it is followed inside alone.
    pub(super) fn symbolic_link(&mut self, inside: &Inside<'_>, target: &[u8]) -> io::Result<()> {
        let (parent, name) = self.clear(inside)?;
        symlinkat(OsStr::from_bytes(target), &parent, name)?;
        self.made.insert(statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW)?.st_ino);
        Ok(())
    }

    /// A second name for what is there already.
    pub(super) fn hard_link(&mut self, inside: &Inside<'_>, target: &Inside<'_>) -> io::Result<()> {
        let of = target.name().ok_or(Errno::ISDIR)?;
        let from = self.open(&target.parent())?;
        let (parent, name) = self.clear(inside)?;
        linkat(&from, of, &parent, name, AtFlags::empty())?;
        self.made.insert(statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW)?.st_ino);
        Ok(())
    }

    /// Takes away what lower layers have there.
    pub(super) fn hide(&self, inside: &Inside<'_>) -> io::Result<()> {
        let Some(name) = inside.name() else { return Ok(()) };
        match self.open(&inside.parent()) {
            Ok(parent) => Ok(removal::remove(parent.as_fd(), name, self.spared(true))?),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Takes away all that lower layers have beside it.
    pub(super) fn hide_all(&self, inside: &Inside<'_>) -> io::Result<()> {
        match self.open(&inside.parent()) {
            Ok(parent) => {
                let directory = openat(&parent, ".", DIRECTORY, Mode::empty())?;
                Ok(removal::empty(&directory, self.spared(true))?)
            }
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    fn spared(&self, is_own: bool) -> Spared<'_> {
        Spared { inodes: is_own.then_some(&self.made), visits_left: &self.visits_left }
    }

    /// The directory for an entry, where nothing of its name is left.
    fn clear<'a>(&mut self, inside: &Inside<'a>) -> io::Result<(OwnedFd, &'a OsStr)> {
        let name = inside.name().ok_or(Errno::ISDIR)?;
        let parent = self.parent(inside)?;
        removal::remove(parent.as_fd(), name, self.spared(false))?;
        Ok((parent, name))
    }

    /// The directory that an entry lies in, made if it is missing.
    fn parent(&mut self, inside: &Inside<'_>) -> io::Result<OwnedFd> {
        let parents = inside.parents();
        match self.open(&inside.parent()) {
            Err(Errno::NOENT) => {}
            opened => return Ok(opened?),
        }
        let mut above = self.open(Path::new("."))?;
        for depth in 1..=parents.len() {
            above = match self.open(&parents[..depth].iter().collect::<std::path::PathBuf>()) {
                Err(Errno::NOENT) => {
                    self.count().ok_or_else(|| io::Error::other("there are too many directories"))?;
                    let made = self.make_directory(&above, parents[depth - 1])?;
                    set_mode(&made, USUAL)?;
                    self.made.insert(fstat(&made)?.st_ino);
                    made
                }
                opened => opened?,
            };
        }
        Ok(above)
    }

    /// In the place of whatever has its name.
    fn make_directory(&mut self, parent: &OwnedFd, name: &OsStr) -> io::Result<OwnedFd> {
        let depth = self.depths.get(&fstat(parent)?.st_ino).map_or(DEPTH, |above| above + 1);
        if depth >= DEPTH {
            return Err(io::Error::other(format!("there are more than {DEPTH} directories within each other")));
        }
        removal::remove(parent.as_fd(), name, self.spared(false))?;
        mkdirat(parent, name, Mode::RWXU)?;
        let made = openat(parent, name, DIRECTORY, Mode::empty())?;
        self.depths.insert(fstat(&made)?.st_ino, depth);
        Ok(made)
    }

    /// Opens a directory as the place that it is, with the tree as its root.
    fn open(&self, directory: &Path) -> Result<OwnedFd, Errno> {
        let rules = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        // `..` of a link is refused while anything on the host is renamed (openat2(2), EAGAIN).
        for _ in 0..1000 {
            match openat2(&self.root, directory, flags, Mode::empty(), rules) {
                Err(Errno::AGAIN) => std::thread::yield_now(),
                opened => return opened,
            }
        }
        Err(Errno::AGAIN)
    }
}

fn kind(parent: impl AsFd, name: &OsStr) -> Result<Option<FileType>, Errno> {
    match statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(FileType::from_raw_mode(stat.st_mode))),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Whatever the mask is that this process was started with.
fn set_mode(of: impl AsFd, mode: u32) -> Result<(), Errno> {
    fchmod(of, Mode::from_raw_mode(mode))
}
