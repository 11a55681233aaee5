//! Volumes: directories and files of the host that are mounted in a sandbox.
//!
//! A volume is opened once and checked, and the mount is made from that descriptor (for an ordinary user: from one that
//! is verified to be the same object), so a path that is swapped in between has no effect. If root starts the sandbox,
//! the volume's owner is mapped to the guest (an idmapped mount): the guest accesses the volume with the rights of its
//! owner, and has no access to files of other users in it.
//!
//! `protected` lists the names in a read-write volume that the guest must not write.

mod check;
mod owner_map;
mod protected;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::error::{Error, SetupError, SetupStep};
use crate::sys::{self, MountAttributes, Recursive, clone_tree};
use ringfence_core::{Access, Volume};

pub(crate) use check::check_volumes;
pub use protected::{Change, NameChange, VolumeWatch};
pub(crate) use protected::{Pin, Pins, Placeholders};

/// A volume that was opened and checked.
#[derive(Debug)]
pub(crate) struct CheckedVolume {
    /// The object that was checked, independent of its path.
    opened: OwnedFd,
    description: VolumeDescription,
}

/// The properties of a checked volume.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct VolumeDescription {
    host: PathBuf,
    guest: PathBuf,
    access: Access,
    kind: NodeKind,
    owner: (u32, u32),
    pins: Pins,
}

/// A volume that is ready to be mounted.
pub(crate) struct OpenVolume {
    pub(crate) tree: OwnedFd,
    pub(crate) guest: PathBuf,
    pub(crate) access: Access,
    pub(crate) kind: NodeKind,
    /// The mounts over parts of it, outer ones first.
    pub(crate) pins: Pins,
}

/// The kind of a file system object that can be mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum NodeKind {
    Directory,
    File,
}

/// Opens a volume with `O_PATH`, beneath its allowed root if it has one.
fn open(volume: &Volume) -> Result<OwnedFd, Errno> {
    match &volume.allowed_root {
        Some(root) => root.open(&volume.host),
        None => rustix::fs::open(&volume.host, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()),
    }
}

impl CheckedVolume {
    pub(crate) fn from_parts(description: VolumeDescription, opened: OwnedFd) -> Self {
        Self { opened, description }
    }

    pub(crate) fn description(&self) -> &VolumeDescription {
        &self.description
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.opened.as_fd()
    }

    pub(crate) fn with_tree(&self, tree: OwnedFd) -> OpenVolume {
        let VolumeDescription { guest, access, kind, pins, .. } = self.description.clone();
        OpenVolume { tree, guest, access, kind, pins }
    }

    /// Opens the volume inside the new mount namespace, with the rights of the user who started the sandbox.
    ///
    /// The checked descriptor belongs to the host's mount namespace and cannot be cloned here, so the path is opened
    /// again and must lead to the same object.
    pub(crate) fn open(&self) -> Result<OpenVolume, SetupError> {
        let host = &*self.description.host;
        let describe = || format!("open volume {}", host.display());
        let tree = clone_tree(CWD, host).step(describe)?;
        let identity = |fd: &OwnedFd| rustix::fs::fstat(fd).map(|stat| (stat.st_dev, stat.st_ino));
        if identity(&tree).step(describe)? != identity(&self.opened).step(describe)? {
            return Err(Errno::STALE)
                .step(|| format!("open volume {}: it was replaced during the start", host.display()));
        }
        Ok(self.with_tree(tree))
    }

    /// Opens the volume on the host, with its owner mapped to the guest's host ids. Needs root.
    pub(crate) fn open_mapped(&self, guest_ids: (u32, u32)) -> Result<OwnedFd, Error> {
        let failed = |source| {
            Error::Volume {
            path: self.description.host.clone(),
            source,
            hint: "for write access from a sandbox that root started, the file system must support idmapped mounts, and ringfence must not run in the user namespace of a container; otherwise mount the volume `ro`".into(),
        }
        };
        let tree = clone_tree(&self.opened, "").map_err(failed)?;
        let namespace = owner_map::create_namespace(self.description.owner, guest_ids)?;
        let attributes = MountAttributes { set: 0, id_map: Some(namespace.as_fd()) };
        match sys::mount_setattr(tree.as_fd(), &attributes, Recursive::Yes) {
            // Without the map the guest reads what everyone may read; only writing needs the owner's id. In a container
            // the mount belongs to another user namespace (EPERM).
            Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::PERM) if self.description.access == Access::ReadOnly => {
                Ok(tree)
            }
            result => result.map(|()| tree).map_err(failed),
        }
    }
}
