//! Lists the mounts that prevent a guest from replacing a path in a volume, or a part of that path.
//!
//! Each directory on the way becomes a mount point, because any other directory can be renamed and replaced. A symbolic
//! link on the way is pinned as well, and followed while it stays in the volume.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, FileType, readlinkat, statat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::open_directory;

/// How a path in a volume is mounted over itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Pin {
    /// Still writable, but it cannot be renamed or removed.
    Point,
    /// The same for a symbolic link.
    Link,
    ReadOnly,
    /// An empty directory in its place.
    Hidden,
}

/// The target of a path in a volume.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    Directory(PathBuf),
    File(PathBuf),
    /// A file system object that a mount does not protect.
    Special,
    /// This is the first component that is missing.
    Absent(PathBuf),
    /// The path leads out of the volume, is a loop, or passes something that the guest cannot enter either.
    Elsewhere,
}

/// More than the kernel follows in one path.
const MAX_LINKS: usize = 48;

pub(super) struct Walk<'a> {
    volume: &'a OwnedFd,
    real: &'a Path,
    pins: BTreeMap<PathBuf, Pin>,
}

impl<'a> Walk<'a> {
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
    pub(super) fn resolve(&mut self, path: &Path) -> Result<Found, Errno> {
        let mut trail = Vec::new();
        let found = self.follow(path, &mut trail)?;
        let is_link = |(_, pin): &(PathBuf, Pin)| *pin == Pin::Link;
        // A dangling link exists, although its target does not.
        if !matches!(found, Found::Absent(_)) || trail.iter().any(is_link) {
            for (path, pin) in trail {
                self.pin(path, pin);
            }
        }
        Ok(found)
    }

    pub(super) fn pin(&mut self, path: PathBuf, pin: Pin) {
        let entry = self.pins.entry(path).or_insert(pin);
        *entry = (*entry).max(pin);
    }

    /// The pins, outer ones first.
    pub(super) fn into_pins(self) -> Vec<(PathBuf, Pin)> {
        let covers = |outer: &Path, wanted: Pin| self.pins.get(outer).is_some_and(|pin| *pin >= wanted);
        let is_needed = |(path, pin): &(&PathBuf, &Pin)| {
            let mut above = path.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty());
            !above.any(|outer| covers(outer, (**pin).max(Pin::ReadOnly)))
        };
        self.pins.iter().filter(is_needed).map(|(path, pin)| (path.clone(), *pin)).collect()
    }

    fn follow(&self, path: &Path, trail: &mut Vec<(PathBuf, Pin)>) -> Result<Found, Errno> {
        let (mut rest, mut links) = (components(path), 0);
        let mut at = PathBuf::new();
        let mut directory = open_directory(self.volume, &at)?;
        while let Some(name) = rest.pop_front() {
            if name == ".." {
                if !at.pop() {
                    return Ok(Found::Elsewhere);
                }
                directory = open_directory(self.volume, &at)?;
                continue;
            }
            let here = at.join(&name);
            let kind = match statat(&directory, &name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => FileType::from_raw_mode(stat.st_mode),
                Err(Errno::NOENT) => return Ok(Found::Absent(here)),
                // A link can name what no directory can contain.
                Err(Errno::NAMETOOLONG) => return Ok(Found::Elsewhere),
                Err(Errno::ACCESS) if !at.as_os_str().is_empty() => {
                    // Its owner could change its mode, or replace it.
                    trail.push((at, Pin::ReadOnly));
                    return Ok(Found::Elsewhere);
                }
                Err(errno) => return Err(errno),
            };
            match kind {
                FileType::Symlink => {
                    trail.push((here, Pin::Link));
                    links += 1;
                    let target = readlinkat(&directory, &name, Vec::new())?;
                    let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
                    let inside = if target.is_absolute() {
                        let Ok(inside) = target.strip_prefix(self.real) else { return Ok(Found::Elsewhere) };
                        at = PathBuf::new();
                        directory = open_directory(self.volume, &at)?;
                        inside
                    } else {
                        &target
                    };
                    if links > MAX_LINKS {
                        return Ok(Found::Elsewhere);
                    }
                    for part in components(inside).into_iter().rev() {
                        rest.push_front(part);
                    }
                }
                FileType::Directory => {
                    trail.push((here.clone(), Pin::Point));
                    if rest.is_empty() {
                        // Not entered: this process may lack the permission.
                        return Ok(Found::Directory(here));
                    }
                    directory = open_directory(&directory, Path::new(&name))?;
                    at = here;
                }
                FileType::RegularFile if rest.is_empty() => return Ok(Found::File(here)),
                // Nothing can lie beneath it.
                _ if !rest.is_empty() => return Ok(Found::Elsewhere),
                _ => return Ok(Found::Special),
            }
        }
        // A link to the volume itself names nothing that could be protected.
        Ok(if at.as_os_str().is_empty() { Found::Elsewhere } else { Found::Directory(at) })
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
