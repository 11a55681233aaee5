//! Detects protected names that appear in a volume, or lose their protection, while a sandbox may write it.
//!
//! A name that was absent at the start of the sandbox has no pin, so the guest can create it. A name that is replaced
//! on the host (by an editor that saves by renaming) loses its mount in every sandbox.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat, openat2, statat};
use rustix::io::Errno;

use super::names::Form;
use super::{git, paths};
use ringfence_core::{Access, Volume};

/// The kind of change of a protected name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    Created,
    /// The name refers to another file now, which the guest can write.
    Replaced,
}

impl Change {
    pub fn name(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Replaced => "replaced",
        }
    }
}

/// A change of a protected name while a guest could write its volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameChange {
    pub host: PathBuf,
    pub guest: PathBuf,
    pub change: Change,
}

impl std::fmt::Display for NameChange {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (name, host) = (self.guest.display(), self.host.display());
        match self.change {
            Change::Created => write!(
                formatter,
                "{name} was created in a volume: programs on the host may execute {host} or read it as settings, so \
                 review it"
            ),
            Change::Replaced => write!(
                formatter,
                "{name} was replaced in a volume and is no longer read-only in this sandbox: programs on the host may \
                 execute {host} or read it as settings, so review it"
            ),
        }
    }
}

/// The protected names of a sandbox's read-write volumes, as they were at the last check.
#[derive(Debug)]
pub struct VolumeWatch(Vec<WatchedVolume>);

#[derive(Debug)]
struct WatchedVolume {
    volume: OwnedFd,
    host: PathBuf,
    guest: PathBuf,
    /// Grouped by parent directory, so that each parent is opened once.
    names: BTreeMap<PathBuf, Vec<(PathBuf, State)>>,
}

/// The state of a name: absent, or an object, with the target of a link.
type State = Option<(Identity, Identity)>;
type Identity = (u64, u64);

impl VolumeWatch {
    /// Records the protected names of the volumes, before a sandbox is started. `None` if no volume is writable.
    pub fn start(volumes: &[Volume]) -> Option<Self> {
        let writable = volumes.iter().filter(|volume| volume.access == Access::ReadWrite);
        // A volume that cannot be opened is ignored: the sandbox will not start with it.
        let watched: Vec<_> = writable.filter_map(|volume| WatchedVolume::start(volume).ok().flatten()).collect();
        (!watched.is_empty()).then_some(Self(watched))
    }

    /// Returns the names that were created or replaced since the last check.
    pub fn take_changes(&mut self) -> Vec<NameChange> {
        let mut changes = Vec::new();
        for watched in &mut self.0 {
            watched.check(|host, guest, change| {
                // The contents of a new directory are not reported separately.
                if !changes.iter().any(|known: &NameChange| host.starts_with(&known.host)) {
                    changes.push(NameChange { host, guest, change });
                }
            });
        }
        changes
    }

    /// Whether no name has changed since the last check. Then a sandbox that was started since has a pin for each name.
    pub fn is_unchanged(&self) -> bool {
        self.0.iter().all(WatchedVolume::is_unchanged)
    }
}

impl WatchedVolume {
    fn start(volume: &Volume) -> Result<Option<Self>, Errno> {
        let opened = super::super::open(volume)?;
        if FileType::from_raw_mode(rustix::fs::fstat(&opened)?.st_mode) != FileType::Directory {
            return Ok(None);
        }
        let mut names: BTreeMap<PathBuf, Vec<(PathBuf, State)>> = BTreeMap::new();
        let mut add = |path: &Path| {
            let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return };
            names.entry(parent.to_owned()).or_default().push((name.into(), None));
        };
        let host = std::path::absolute(&volume.host).unwrap_or_else(|_| volume.host.clone());
        for protected in paths::in_volume(&host)?.into_iter().filter(|protected| protected.is_watched) {
            add(&protected.path);
            if protected.form == Form::Git {
                for part in git::WATCHED {
                    add(&protected.path.join(part));
                }
            }
        }
        let mut watched = Self { volume: opened, host, guest: volume.guest.clone(), names };
        watched.check(|_, _, _| {});
        Ok(Some(watched))
    }

    /// Reports the changes since the last check, and records the present state.
    fn check(&mut self, mut report: impl FnMut(PathBuf, PathBuf, Change)) {
        for (parent, names) in &mut self.names {
            let directory = open_parent(&self.volume, parent);
            for (name, state) in names {
                let now = state_of(&directory, name);
                let change = match (*state, now) {
                    (None, Some(_)) => Some(Change::Created),
                    (Some(before), Some(after)) if before != after => Some(Change::Replaced),
                    _ => None,
                };
                *state = now;
                if let Some(change) = change {
                    let path = parent.join(&*name);
                    report(self.host.join(&path), self.guest.join(&path), change);
                }
            }
        }
    }

    fn is_unchanged(&self) -> bool {
        self.names.iter().all(|(parent, names)| {
            let directory = open_parent(&self.volume, parent);
            names.iter().all(|(name, state)| state_of(&directory, name) == *state)
        })
    }
}

/// Opens the parent directory of a name with `O_PATH`. Follows links within the volume, because a parent may be one.
fn open_parent(volume: &OwnedFd, parent: &Path) -> Result<OwnedFd, Errno> {
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat2(volume, parent, flags, Mode::empty(), ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS)
}

/// The state of a name whose parent cannot be opened.
fn unreachable_state(errno: Errno) -> State {
    match errno {
        Errno::NOENT | Errno::NOTDIR => None,
        // For example a link that leads out of the volume: that counts as a change, too.
        errno => Some(failed(errno)),
    }
}

fn state_of(directory: &Result<OwnedFd, Errno>, name: &Path) -> State {
    let directory = match directory {
        Ok(directory) => directory,
        Err(errno) => return unreachable_state(*errno),
    };
    let identity = |stat: Stat| (stat.st_dev, stat.st_ino);
    match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink => {
            let flags = OFlags::PATH | OFlags::CLOEXEC;
            let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
            let target = openat2(directory, name, flags, Mode::empty(), resolve).and_then(rustix::fs::fstat);
            Some((identity(stat), target.map_or_else(|errno| failed(errno).1, identity)))
        }
        Ok(stat) => Some((identity(stat), (0, 0))),
        Err(Errno::NOENT | Errno::NOTDIR) => None,
        Err(errno) => Some(failed(errno)),
    }
}

/// The state of a name that cannot be inspected: different for each error.
fn failed(errno: Errno) -> (Identity, Identity) {
    ((0, 0), (0, u64::from(errno.raw_os_error().unsigned_abs())))
}
