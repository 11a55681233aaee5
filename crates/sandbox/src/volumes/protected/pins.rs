//! Collects the mounts that prevent a guest from replacing a path in a volume, or a part of that path.
//!
//! Each directory of the path becomes a mount point, because any other directory can be renamed and replaced. A
//! symbolic link in the path is pinned as well, and followed as long as it stays in the volume.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, FileType, readlinkat, statat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::open_directory;

/// The mount over a path in a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Pin {
    /// The path is mounted over itself: still writable, but it cannot be renamed or removed.
    #[serde(rename = "point")]
    MountPoint,
    /// The same for a symbolic link.
    Link,
    /// The path is mounted over itself, read-only.
    ReadOnly,
    /// An empty directory covers the path.
    Hidden,
}

/// The object to which a path in a volume leads.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Resolved {
    Directory(PathBuf),
    File(PathBuf),
    /// A file system object that a mount does not protect.
    Special,
    /// The first component that does not exist.
    Absent(PathBuf),
    /// The path leads out of the volume, is a loop, or leads through a directory that the guest cannot enter either.
    Elsewhere,
}

/// Maximum number of links in one path; more than the kernel follows.
const MAX_LINKS: usize = 48;

/// Resolves paths in a volume and collects their pins.
pub(super) struct PathPinner<'a> {
    volume: &'a OwnedFd,
    real: &'a Path,
    pins: BTreeMap<PathBuf, Pin>,
}

impl<'a> PathPinner<'a> {
    /// `real` is the path of the volume on the host.
    pub(super) fn new(volume: &'a OwnedFd, real: &'a Path) -> Self {
        Self { volume, real, pins: BTreeMap::new() }
    }

    pub(super) fn volume(&self) -> &'a OwnedFd {
        self.volume
    }

    pub(super) fn real(&self) -> &'a Path {
        self.real
    }

    /// Resolves a path, and pins every component unless the path does not exist.
    pub(super) fn resolve(&mut self, path: &Path) -> Result<Resolved, Errno> {
        let mut trail = Vec::new();
        let resolved = self.follow(path, &mut trail)?;
        let is_link = |(_, pin): &(PathBuf, Pin)| *pin == Pin::Link;
        // A dangling link exists, although its target does not.
        if !matches!(resolved, Resolved::Absent(_)) || trail.iter().any(is_link) {
            for (path, pin) in trail {
                self.pin(path, pin);
            }
        }
        Ok(resolved)
    }

    /// Adds a pin. If the path already has one, the stronger one wins.
    pub(super) fn pin(&mut self, path: PathBuf, pin: Pin) {
        let entry = self.pins.entry(path).or_insert(pin);
        *entry = (*entry).max(pin);
    }

    /// Returns the pins, outer ones first, without those that an outer pin makes unnecessary.
    pub(super) fn into_pins(self) -> Vec<(PathBuf, Pin)> {
        let covers = |outer: &Path, needed: Pin| self.pins.get(outer).is_some_and(|pin| *pin >= needed);
        let is_needed = |(path, pin): &(&PathBuf, &Pin)| {
            let mut above = path.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty());
            !above.any(|outer| covers(outer, (**pin).max(Pin::ReadOnly)))
        };
        self.pins.iter().filter(is_needed).map(|(path, pin)| (path.clone(), *pin)).collect()
    }

    /// Resolves a path, and adds the pins of its components to `trail`.
    fn follow(&self, requested: &Path, trail: &mut Vec<(PathBuf, Pin)>) -> Result<Resolved, Errno> {
        let (mut rest, mut links) = (components(requested), 0);
        let mut current = PathBuf::new();
        let mut directory = open_directory(self.volume, &current)?;
        while let Some(name) = rest.pop_front() {
            if name == ".." {
                if !current.pop() {
                    return Ok(Resolved::Elsewhere);
                }
                directory = open_directory(self.volume, &current)?;
                continue;
            }
            let path = current.join(&name);
            let kind = match statat(&directory, &name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => FileType::from_raw_mode(stat.st_mode),
                Err(Errno::NOENT) => return Ok(Resolved::Absent(path)),
                // The target of a link can have a name that is too long for any directory.
                Err(Errno::NAMETOOLONG) => return Ok(Resolved::Elsewhere),
                Err(Errno::ACCESS) if !current.as_os_str().is_empty() => {
                    // The guest could change the directory's mode, or replace it.
                    trail.push((current, Pin::ReadOnly));
                    return Ok(Resolved::Elsewhere);
                }
                Err(errno) => return Err(errno),
            };
            match kind {
                FileType::Symlink => {
                    trail.push((path, Pin::Link));
                    links += 1;
                    let target = readlinkat(&directory, &name, Vec::new())?;
                    let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
                    let inside = if target.is_absolute() {
                        let Ok(inside) = target.strip_prefix(self.real) else { return Ok(Resolved::Elsewhere) };
                        current = PathBuf::new();
                        directory = open_directory(self.volume, &current)?;
                        inside
                    } else {
                        &target
                    };
                    if links > MAX_LINKS {
                        return Ok(Resolved::Elsewhere);
                    }
                    for part in components(inside).into_iter().rev() {
                        rest.push_front(part);
                    }
                }
                FileType::Directory => {
                    trail.push((path.clone(), Pin::MountPoint));
                    if rest.is_empty() {
                        // Not opened, because this process may lack the permission.
                        return Ok(Resolved::Directory(path));
                    }
                    directory = open_directory(&directory, Path::new(&name))?;
                    current = path;
                }
                FileType::RegularFile if rest.is_empty() => return Ok(Resolved::File(path)),
                // Not a directory, so the rest of the path cannot exist.
                _ if !rest.is_empty() => return Ok(Resolved::Elsewhere),
                _ => return Ok(Resolved::Special),
            }
        }
        // A link to the volume itself has no path that could be pinned.
        Ok(if current.as_os_str().is_empty() { Resolved::Elsewhere } else { Resolved::Directory(current) })
    }
}

fn components(path: &Path) -> VecDeque<OsString> {
    let part = |component: Component<'_>| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    };
    path.components().filter_map(part).collect()
}
