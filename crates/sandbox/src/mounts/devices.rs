//! The guest's `/dev`: a few devices of the host, and a separate instance of devpts.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, symlinkat};
use rustix::mount::MountAttrFlags;

use super::Result;
use super::tree::{attach_trusted, make_trusted_mount_point, new_file_system, set_attributes};
use crate::error::SetupStep;
use crate::sys::{Recursive, clone_tree};
use crate::volumes::NodeKind;

/// Maximum number of pseudo-terminals of one sandbox. The host has 3072 for all devpts instances except its own
/// (`kernel.pty.max` less `kernel.pty.reserve`), which is enough for the default of 64 sessions.
const MAX_TERMINALS: &str = "32";

const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];

/// Copies the mounts of the host's devices.
pub(super) fn open() -> Result<Vec<OwnedFd>> {
    let open = |name: &&str| clone_tree(CWD, format!("/dev/{name}")).step(|| format!("open /dev/{name}"));
    DEVICES.iter().map(open).collect()
}

/// Mounts the devices of [`open`] and a devpts in `root`.
pub(super) fn mount(root: &OwnedFd, devices: Vec<OwnedFd>) -> Result {
    let describe = || "set up /dev".to_owned();
    for (name, device) in DEVICES.iter().zip(devices) {
        let path = Path::new("dev").join(name);
        make_trusted_mount_point(root, &path, NodeKind::File).step(describe)?;
        // Without `nodev`. A user namespace cannot make device nodes, so the host's are used.
        let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        set_attributes(device.as_fd(), flags, Recursive::No).step(describe)?;
        attach_trusted(device.as_fd(), root, &path).step(describe)?;
    }
    let pts = new_file_system(
        "devpts",
        &[("newinstance", ""), ("ptmxmode", "0666"), ("mode", "0620"), ("max", MAX_TERMINALS)],
        MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC,
    )
    .step(|| "mount a private /dev/pts".into())?;
    make_trusted_mount_point(root, Path::new("dev/pts"), NodeKind::Directory).step(describe)?;
    attach_trusted(pts.as_fd(), root, Path::new("dev/pts")).step(describe)?;
    let links = [
        ("pts/ptmx", "dev/ptmx"),
        ("/proc/self/fd", "dev/fd"),
        ("/proc/self/fd/0", "dev/stdin"),
        ("/proc/self/fd/1", "dev/stdout"),
        ("/proc/self/fd/2", "dev/stderr"),
    ];
    links.iter().try_for_each(|(target, path)| symlinkat(*target, root, *path)).step(describe)
}
