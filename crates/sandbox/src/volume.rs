//! Directories and files of the host that the guest is shown.
//!
//! A volume is opened once, checked and mounted from that descriptor (or, for an ordinary user, from one that
//! is found to be the same), so that a path swapped in between leads nowhere else. Started by root, its owner is mapped
//! to the guest (an idmapped mount), so that the guest reads and writes it as the owner would, and nobody else's files
//! in it.

use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, pidfd_send_signal, waitid};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Step, StepError};
use crate::mounts::clone_tree;
use crate::protect;
use crate::protect::{Hold, Pin, Pins};
use crate::sys;
use crate::sys::{Fork, MountAttributes, Parent, Recursive};
use crate::view::Kind;
use ringfence_core::{Access, Spec, Volume};

/// A volume that exists, with the parts of it that stay read-only.
#[derive(Debug)]
pub(crate) struct CheckedVolume {
    /// Holds what was checked, whatever happens to the path.
    opened: OwnedFd,
    description: VolumeDescription,
}

/// What is known of a checked volume besides its descriptor.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct VolumeDescription {
    host: PathBuf,
    guest: PathBuf,
    access: Access,
    kind: Kind,
    owner: (u32, u32),
    pins: Pins,
}

/// A volume ready to be mounted.
pub(crate) struct OpenVolume {
    pub(crate) tree: OwnedFd,
    pub(crate) guest: PathBuf,
    pub(crate) access: Access,
    pub(crate) kind: Kind,
    /// What is mounted over parts of it, outer ones first.
    pub(crate) pins: Pins,
}

/// Places that show or control the host itself, or hold the sockets of its services: whoever can reach a
/// socket in a volume can connect to it, even where the volume is read-only.
const FORBIDDEN: [&str; 4] = ["/proc", "/sys", "/dev", "/run"];

/// Removable disks are mounted below `/run` by desktops.
const ALLOWED: &str = "/run/media";

/// Checks every volume, and makes the placeholders of strict ones.
pub(crate) fn check(spec: &Spec) -> Result<(Vec<CheckedVolume>, Vec<Hold>), Error> {
    let mut checked = Vec::new();
    let mut holds = Vec::new();
    for volume in &spec.volumes {
        let (volume, hold) = check_one(volume, &spec.protected_paths, spec.strict_volumes.as_deref())?;
        checked.push(volume);
        holds.extend(hold);
    }
    // Outer ones first, so that an inner one is not hidden.
    checked.sort_by_key(|volume| volume.description.guest.components().count());
    Ok((checked, holds))
}

/// Opens a volume as a mere path (`O_PATH`), beneath its root if it has one.
pub(crate) fn open(volume: &Volume) -> Result<OwnedFd, Errno> {
    match &volume.allowed_root {
        Some(within) => within.open(&volume.host),
        None => rustix::fs::open(&volume.host, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()),
    }
}

fn check_one(volume: &Volume, kept: &[PathBuf], locks: Option<&Path>) -> Result<(CheckedVolume, Option<Hold>), Error> {
    let refuse = |source, hint: String| Error::Volume { path: volume.host.clone(), source, hint };
    let opened = open(volume).map_err(|source| {
        let hint = volume.allowed_root.as_ref().map_or_else(|| advice(source).into(), |within| within.explain(source));
        refuse(source, hint)
    })?;
    let stat = rustix::fs::fstat(&opened).map_err(|source| refuse(source, "check the path".into()))?;
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => Kind::Directory,
        FileType::RegularFile => Kind::File,
        // A guest that could write its directory could have planted it.
        FileType::Symlink => {
            let target = fs::read_link(&volume.host).unwrap_or_default();
            return Err(refuse(
                Errno::LOOP,
                format!("it is a link; give what it leads to, if you mean that: {}", target.display()),
            ));
        }
        _ => {
            let hint =
                "only directories and regular files can be mounted: a socket or device would lead out of the sandbox";
            return Err(refuse(Errno::INVAL, hint.into()));
        }
    };
    let real = fs::read_link(format!("/proc/self/fd/{}", opened.as_raw_fd()))
        .map_err(|error| refuse(Errno::from_io_error(&error).unwrap_or(Errno::IO), "check /proc".into()))?;
    // A link on the way is refused as one at the end is: a guest may have planted it.
    if std::path::absolute(&volume.host).ok().as_ref() != Some(&real) {
        return Err(refuse(
            Errno::LOOP,
            format!("its path leads through a link; give the real one, if you mean that: {}", real.display()),
        ));
    }
    let below = |place: &&str| real.starts_with(place);
    let is_everything = ["/", "/tmp"].iter().any(|place| real == Path::new(place));
    if is_everything || (FORBIDDEN.iter().any(below) && !below(&ALLOWED)) {
        let hint =
            "it shows or controls the host itself, or holds the sockets of its services; choose a directory of data";
        return Err(refuse(Errno::PERM, hint.into()));
    }
    let mut own: Vec<(PathBuf, Kind)> = Vec::new();
    for below in kept.iter().filter_map(|kept| kept.strip_prefix(&real).ok()) {
        let kind = kind_beneath(&opened, below).map_err(|source| {
            refuse(source, format!("it contains {}, which guests must not see or write", below.display()))
        })?;
        own.push((below.to_owned(), kind));
    }
    let (pins, hold) = match (volume.access, kind) {
        (Access::ReadWrite, Kind::Directory) => protect::protect(&opened, &real, &own, locks).map_err(|refusal| {
            let path = if refusal.path.as_os_str().is_empty() { real.clone() } else { real.join(refusal.path) };
            Error::Volume { path, source: refusal.source, hint: refusal.hint }
        })?,
        _ => (hidden(&own), None),
    };
    let description = VolumeDescription {
        host: volume.host.clone(),
        guest: volume.guest.clone(),
        access: volume.access,
        kind,
        owner: (stat.st_uid, stat.st_gid),
        pins,
    };
    Ok((CheckedVolume { opened, description }, hold))
}

/// Paths that a guest must not see, even in a read-only volume. Nothing is mounted in a directory that is itself
/// hidden.
fn hidden(own: &[(PathBuf, Kind)]) -> Pins {
    let directories = own.iter().filter(|(_, kind)| *kind == Kind::Directory).map(|(path, _)| path);
    let is_outer = |path: &&PathBuf| !path.ancestors().skip(1).any(|above| own.iter().any(|(other, _)| other == above));
    directories.filter(is_outer).map(|path| (path.clone(), Pin::Hidden)).collect()
}

/// What something in a volume is. The volume itself cannot be kept from those whom it is shown to.
fn kind_beneath(volume: &OwnedFd, below: &Path) -> Result<Kind, Errno> {
    if below.as_os_str().is_empty() {
        return Err(Errno::PERM);
    }
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let found = rustix::fs::fstat(openat2(volume, below, flags, Mode::empty(), resolve)?)?;
    match FileType::from_raw_mode(found.st_mode) {
        FileType::Directory => Ok(Kind::Directory),
        FileType::RegularFile => Ok(Kind::File),
        _ => Err(Errno::INVAL),
    }
}

fn advice(source: Errno) -> &'static str {
    match source {
        Errno::NOENT => "make the directory first; a volume is never created",
        Errno::ACCESS => "choose a path that you may read",
        _ => "check the path",
    }
}

impl CheckedVolume {
    pub(crate) fn from_parts(description: VolumeDescription, opened: OwnedFd) -> Self {
        Self { opened, description }
    }

    pub(crate) fn description(&self) -> &VolumeDescription {
        &self.description
    }

    /// Opens it from inside the new mount namespace, as the user who started the sandbox.
    ///
    /// What was checked belongs to the other mount namespace and cannot be cloned here, so it is opened
    /// once more, and must be the same.
    pub(crate) fn open(&self) -> Result<OpenVolume, StepError> {
        let host = &*self.description.host;
        let describe = || format!("open volume {}", host.display());
        let tree = clone_tree(CWD, host).step(describe)?;
        let identity = |fd: &OwnedFd| rustix::fs::fstat(fd).map(|stat| (stat.st_dev, stat.st_ino));
        if identity(&tree).step(describe)? != identity(&self.opened).step(describe)? {
            return Err(Errno::STALE).step(|| format!("open volume {}: it was exchanged meanwhile", host.display()));
        }
        Ok(self.with(tree))
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.opened.as_fd()
    }

    pub(crate) fn with(&self, tree: OwnedFd) -> OpenVolume {
        let VolumeDescription { guest, access, kind, pins, .. } = self.description.clone();
        OpenVolume { tree, guest, access, kind, pins }
    }

    /// Opens it on the host with its owner mapped to the guest's host ids. Needs root.
    pub(crate) fn open_mapped(&self, guest_ids: (u32, u32)) -> Result<OwnedFd, Error> {
        let failed = |source| {
            Error::Volume {
            path: self.description.host.clone(),
            source,
            hint: "to be written from a sandbox of root's, a file system must support idmapped mounts, and ringfence must not run in a container's user namespace; mount it `ro`".into(),
        }
        };
        let tree = clone_tree(&self.opened, "").map_err(failed)?;
        let namespace = id_map_namespace(self.description.owner, guest_ids)?;
        let attributes = MountAttributes { set: 0, id_map: Some(namespace.as_fd()) };
        match sys::mount_setattr(tree.as_fd(), &attributes, Recursive::Yes) {
            // Readable as it is for everybody; only writing needs the owner's id. In a container the mount
            // belongs to another user namespace (EPERM).
            Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::PERM) if self.description.access == Access::ReadOnly => {
                Ok(tree)
            }
            result => result.map(|()| tree).map_err(failed),
        }
    }
}

/// A user namespace whose only purpose is its map, which a mount then uses.
fn id_map_namespace(owner: (u32, u32), guest: (u32, u32)) -> Result<OwnedFd, Error> {
    let step = "map a volume's owner";
    let parent = rustix::process::getpid();
    let (pid, pidfd) = match sys::clone_into(libc::CLONE_NEWUSER, None, Parent::This).map_err(Error::setup(step))? {
        Fork::Child => exist_until_killed(parent),
        Fork::Parent { pid, pidfd } => (pid, pidfd),
    };
    let proc = Path::new("/proc").join(pid.as_raw_nonzero().to_string());
    let result = fs::write(proc.join("uid_map"), format!("{} {} 1", owner.0, guest.0))
        .and_then(|()| fs::write(proc.join("gid_map"), format!("{} {} 1", owner.1, guest.1)))
        .and_then(|()| fs::File::open(proc.join("ns/user")));
    // It has done its work by existing; it is ours, and blocked until it is killed.
    let _ = pidfd_send_signal(&pidfd, Signal::KILL);
    let _ = waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED);
    let file = result.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO)).map_err(Error::setup(step))?;
    Ok(file.into())
}

/// In the process that only has to exist: holds nothing of its parent's, and never outlives it.
fn exist_until_killed(parent: Pid) -> ! {
    let tied = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    let closed = sys::close_range(0, u32::MAX, 0);
    if tied.is_err() || closed.is_err() || rustix::process::getppid() != Some(parent) {
        sys::exit_now(1);
    }
    loop {
        std::thread::park();
    }
}
