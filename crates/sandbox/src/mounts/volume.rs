//! Mounts a volume, and the pins over its protected names.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::OFlags;

use super::Result;
use super::root_entries::relative;
use super::tree::{
    HARDENED, READ_ONLY, attach, attach_at, make_mount_point, new_file_system, open_beneath, set_attributes,
};
use crate::error::SetupStep;
use crate::sys::{Recursive, clone_tree};
use crate::volumes::{OpenVolume, Pin};
use ringfence_core::Access;

pub(super) fn mount(root: &OwnedFd, volume: &OpenVolume) -> Result {
    let guest = relative(&volume.guest);
    let describe = || format!("mount volume {}", volume.guest.display());
    let flags = match volume.access {
        Access::ReadOnly => READ_ONLY,
        Access::ReadWrite => HARDENED,
    };
    make_mount_point(root, guest, volume.kind).step(describe)?;
    set_attributes(volume.tree.as_fd(), flags, Recursive::Yes).step(describe)?;
    attach(volume.tree.as_fd(), root, guest).step(describe)?;
    for (path, pin) in &volume.pins {
        mount_pin(root, &guest.join(path), *pin).step(|| format!("protect {} in a volume", path.display()))?;
    }
    Ok(())
}

/// Mounts a path of a volume over itself, or hides it: a mount point cannot be renamed, replaced or removed.
fn mount_pin(root: &OwnedFd, path: &Path, pin: Pin) -> rustix::io::Result<()> {
    let mount_point = open_beneath(root, path, if pin == Pin::Link { OFlags::NOFOLLOW } else { OFlags::empty() })?;
    if pin == Pin::Hidden {
        let empty = new_file_system("tmpfs", &[("mode", "0555"), ("size", "4k"), ("nr_inodes", "2")], READ_ONLY)?;
        return attach_at(empty.as_fd(), &mount_point);
    }
    let tree = clone_tree(&mount_point, "")?;
    if pin != Pin::MountPoint {
        set_attributes(tree.as_fd(), READ_ONLY, Recursive::Yes)?;
    }
    attach_at(tree.as_fd(), &mount_point)
}
