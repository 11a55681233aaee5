//! Directories and files of the host that the guest is shown.
//!
//! A volume is opened once and mounted from that descriptor, so that a path swapped in between leads
//! nowhere else. Started by root, its owner is mapped to the guest (an idmapped mount), so that the
//! guest reads and writes it as the owner would, and nobody else's files in it.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::CWD;
use rustix::io::Errno;
use rustix::process::{Signal, WaitId, WaitIdOptions, pidfd_send_signal, waitid};

use crate::error::{Error, Step, StepError};
use crate::mounts::clone_tree;
use crate::protect::Placeholder;
use crate::spec::{Access, Volume};
use crate::sys::{self, Fork, MountAttributes, Recursive};
use crate::view::Kind;

/// A volume that exists, with the parts of it that stay read-only.
#[derive(Debug)]
pub(crate) struct CheckedVolume {
    host: PathBuf,
    guest: PathBuf,
    access: Access,
    kind: Kind,
    owner: (u32, u32),
    protected: Vec<PathBuf>,
}

/// A volume ready to be mounted.
pub(crate) struct OpenVolume {
    pub(crate) tree: OwnedFd,
    pub(crate) guest: PathBuf,
    pub(crate) access: Access,
    pub(crate) kind: Kind,
    pub(crate) protected: Vec<PathBuf>,
}

/// Checks every volume, and makes the placeholders that keep protected names from being created.
pub(crate) fn check(volumes: &[Volume]) -> Result<(Vec<CheckedVolume>, Vec<Placeholder>), Error> {
    let mut checked = Vec::new();
    let mut placeholders = Vec::new();
    for volume in volumes {
        let metadata = fs::metadata(&volume.host).map_err(|error| refuse(volume, &error))?;
        let kind = if metadata.is_dir() { Kind::Directory } else { Kind::File };
        if !metadata.is_dir() && !metadata.is_file() {
            return Err(Error::Volume {
                path: volume.host.clone(),
                source: Errno::INVAL,
                hint: "only directories and regular files can be mounted: a socket or device would lead out of the sandbox".into(),
            });
        }
        let mut protected = Vec::new();
        if volume.access == Access::ReadWrite && metadata.is_dir() {
            let (names, made) = crate::protect::protect(&volume.host)?;
            protected = names;
            placeholders.extend(made);
        }
        checked.push(CheckedVolume {
            host: volume.host.clone(),
            guest: volume.guest.clone(),
            access: volume.access,
            kind,
            owner: (metadata.uid(), metadata.gid()),
            protected,
        });
    }
    // Outer ones first, so that an inner one is not hidden.
    checked.sort_by_key(|volume| volume.guest.components().count());
    Ok((checked, placeholders))
}

fn refuse(volume: &Volume, error: &std::io::Error) -> Error {
    let source = Errno::from_io_error(error).unwrap_or(Errno::IO);
    let hint = match source {
        Errno::NOENT => "make the directory first; a volume is never created",
        Errno::ACCESS => "choose a path that you may read",
        _ => "check the path",
    };
    Error::Volume { path: volume.host.clone(), source, hint: hint.into() }
}

impl CheckedVolume {
    /// Opens it from inside the new mount namespace, as the user who started the sandbox.
    pub(crate) fn open(&self) -> Result<OpenVolume, StepError> {
        let tree = clone_tree(CWD, &*self.host).step(|| format!("open volume {}", self.host.display()))?;
        Ok(self.with(tree))
    }

    pub(crate) fn with(&self, tree: OwnedFd) -> OpenVolume {
        OpenVolume {
            tree,
            guest: self.guest.clone(),
            access: self.access,
            kind: self.kind,
            protected: self.protected.clone(),
        }
    }

    /// Opens it on the host with its owner mapped to the guest's host ids. Needs root.
    pub(crate) fn open_mapped(&self, guest_ids: (u32, u32)) -> Result<OwnedFd, Error> {
        let failed = |source| Error::Volume {
            path: self.host.clone(),
            source,
            hint: "the file system must support idmapped mounts to be written from a sandbox; mount it `ro`".into(),
        };
        let tree = clone_tree(CWD, &*self.host).map_err(failed)?;
        let namespace = id_map_namespace(self.owner, guest_ids)?;
        let attributes = MountAttributes { set: 0, id_map: Some(namespace.as_fd()) };
        match sys::mount_setattr(tree.as_fd(), &attributes, Recursive::Yes) {
            // Readable as it is for everybody; only writing needs the owner's id.
            Err(Errno::INVAL | Errno::OPNOTSUPP) if self.access == Access::ReadOnly => Ok(tree),
            result => result.map(|()| tree).map_err(failed),
        }
    }
}

/// A user namespace whose only purpose is its map, which a mount then uses.
fn id_map_namespace(owner: (u32, u32), guest: (u32, u32)) -> Result<OwnedFd, Error> {
    let step = "map a volume's owner";
    let (pid, pidfd) = match sys::clone_into(libc::CLONE_NEWUSER, None).map_err(Error::setup(step))? {
        Fork::Child => loop {
            std::thread::park();
        },
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
