//! Builds the guest's root directory inside the new mount namespace, and makes it `/`.
//!
//! The root is a small tmpfs that becomes read-only at the end. Everything from the host in it is mounted read-only,
//! without setuid and device files. The guest can write to a second tmpfs, limited in bytes and inodes, and to
//! read-write volumes. No other part of the host's tree stays reachable.

mod devices;
mod proc;
mod root_entries;
mod tree;
mod volume;

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Mode, mkdirat, symlinkat};
use rustix::io::Errno;
use rustix::mount::{
    MountAttrFlags, MountPropagationFlags, MoveMountFlags, UnmountFlags, mount_change, move_mount, unmount,
};

use crate::error::{SetupError, SetupStep};
use crate::restrictions::Restrictions;
use crate::sys::{Recursive, clone_tree};
use crate::sysctls;
use crate::volumes::OpenVolume;
use ringfence_core::{Network, Workspace, WorkspaceEntry};

pub(crate) use root_entries::{RootEntry, list_root_entries};
use tree::{
    HARDENED, READ_ONLY, attach_trusted, make_trusted_mount_point, new_file_system, set_attributes, write_file,
};

type Result<T = ()> = std::result::Result<T, SetupError>;

/// Opens the host's directories of the root entries, as long as this process has the rights of the user who started it.
pub(crate) fn open_sources(entries: &[RootEntry]) -> Result<Vec<OwnedFd>> {
    let mut sources = Vec::new();
    for entry in entries {
        if let RootEntry::Bind { host, .. } = entry {
            sources.push(clone_tree(CWD, &**host).step(|| format!("open {}", host.display()))?);
        }
    }
    Ok(sources)
}

/// Builds the root and makes it `/`. `sources` are those of [`open_sources`].
pub(crate) fn build_root(
    entries: &[RootEntry],
    sources: Vec<OwnedFd>,
    volumes: &[OpenVolume],
    workspace: (&Workspace, &[WorkspaceEntry]),
    network: &Network,
    restrictions: &Restrictions,
) -> Result {
    // No mount here may propagate to the host, and no later mount of the host may appear here.
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .step(|| "make the mounts private".into())?;
    let devices = devices::open()?;
    let proc = new_file_system("proc", &[], HARDENED | MountAttrFlags::MOUNT_ATTR_NOEXEC)
        .step(|| "mount a private /proc".into())?;
    sysctls::lower_limits(proc.as_fd())?;
    if restrictions.is_uid_shared {
        sysctls::unblock_datagram_senders(proc.as_fd())?;
    }
    if *network != Network::None {
        sysctls::allow_low_ports(proc.as_fd())?;
    }
    let root = new_file_system("tmpfs", &[("mode", "0755"), ("size", "4m"), ("nr_inodes", "4096")], HARDENED)
        .step(|| "mount the root tmpfs".into())?;
    attach_root(&root)?;

    make_entries(&root, entries, sources)?;
    proc::mount(&root, &proc, restrictions)?;
    mount_workspace(&root, workspace.0, workspace.1)?;
    devices::mount(&root, devices)?;
    for volume in volumes {
        volume::mount(&root, volume)?;
    }
    set_attributes(root.as_fd(), READ_ONLY, Recursive::No).step(|| "make the root read-only".into())?;
    enter_root(&root)
}

/// Attaches the new root to the old tree, where it must be until it replaces the old root.
fn attach_root(root: &OwnedFd) -> Result {
    let candidates = ["/tmp", "/mnt", "/usr"];
    let attach = |path: &&str| move_mount(root, "", CWD, *path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH);
    let mut result = Err(Errno::NOENT);
    for path in &candidates {
        result = attach(path);
        if result.is_ok() {
            break;
        }
    }
    result.step(|| format!("mount the root on one of {candidates:?}"))
}

fn make_entries(root: &OwnedFd, entries: &[RootEntry], sources: Vec<OwnedFd>) -> Result {
    let mut sources = sources.into_iter();
    for entry in entries {
        match entry {
            RootEntry::Directory { guest } => {
                mkdirat(root, guest, Mode::from_raw_mode(0o755)).step(|| format!("make {}", guest.display()))?;
            }
            RootEntry::Link { guest, target } => {
                symlinkat(target, root, guest).step(|| format!("link {}", guest.display()))?;
            }
            RootEntry::File { guest, text } => {
                write_file(root, guest, text).step(|| format!("write {}", guest.display()))?;
            }
            RootEntry::Bind { host, guest, kind } => {
                let describe = || format!("mount {}", host.display());
                let source = sources.next().ok_or(Errno::INVAL).step(describe)?;
                make_trusted_mount_point(root, guest, *kind).step(describe)?;
                set_attributes(source.as_fd(), READ_ONLY, Recursive::Yes).step(describe)?;
                attach_trusted(source.as_fd(), root, guest).step(describe)?;
            }
        }
    }
    Ok(())
}

/// Mounts `/workspace`, `/tmp` and `/dev/shm` from one tmpfs, so that one limit applies to all of them.
fn mount_workspace(root: &OwnedFd, workspace: &Workspace, entries: &[WorkspaceEntry]) -> Result {
    let describe = || "mount the workspace".to_owned();
    let (bytes, inodes) = (workspace.bytes.to_string(), workspace.inodes.to_string());
    let options = [("mode", "0755"), ("size", &*bytes), ("nr_inodes", &*inodes)];
    let tmpfs = new_file_system("tmpfs", &options, HARDENED).step(describe)?;
    mkdirat(root, "dev/shm", Mode::from_raw_mode(0o755)).step(describe)?;
    // A part of a tree can be cloned only if the tree is attached. The last mount, on /dev/shm, covers this one.
    attach_trusted(tmpfs.as_fd(), root, Path::new("dev/shm")).step(describe)?;
    for (part, mode, path) in [("workspace", 0o755, "workspace"), ("tmp", 0o1777, "tmp"), ("shm", 0o1777, "dev/shm")] {
        mkdirat(&tmpfs, part, Mode::from_raw_mode(mode)).step(describe)?;
        rustix::fs::chmodat(&tmpfs, part, Mode::from_raw_mode(mode), AtFlags::empty()).step(describe)?;
        if part == "workspace" {
            make_workspace_entries(&tmpfs, Path::new(part), entries)?;
        }
        let tree = clone_tree(&tmpfs, part).step(describe)?;
        attach_trusted(tree.as_fd(), root, Path::new(path)).step(describe)?;
    }
    Ok(())
}

fn make_workspace_entries(tmpfs: &OwnedFd, workspace: &Path, entries: &[WorkspaceEntry]) -> Result {
    for entry in entries {
        let path = workspace.join(entry.path());
        let made = match entry {
            WorkspaceEntry::Directory { .. } => mkdirat(tmpfs, &path, Mode::from_raw_mode(0o755)),
            WorkspaceEntry::File { text, .. } => write_file(tmpfs, &path, text),
            WorkspaceEntry::Link { target, .. } => symlinkat(target, tmpfs, &path),
        };
        made.step(|| format!("make {}", path.display()))?;
    }
    Ok(())
}

/// Makes the new root `/`, and detaches the old one.
fn enter_root(root: &OwnedFd) -> Result {
    let describe = || "enter the new root".to_owned();
    rustix::process::fchdir(root).step(describe)?;
    // This mounts the old root over the new one, from where it is unmounted (pivot_root(2)).
    rustix::process::pivot_root(".", ".").step(describe)?;
    unmount(".", UnmountFlags::DETACH).step(describe)?;
    rustix::process::chdir("/").step(describe)
}
