//! Builds the guest's root directory inside the new mount namespace, and moves into it.
//!
//! The root is a small tmpfs that ends up read-only; everything of the host's in it is mounted
//! read-only, without setuid and device files. What the guest may write lies on one second tmpfs,
//! bounded in bytes and inodes, and in read-write volumes. Nothing of the host's tree stays reachable.

mod proc;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, mkdirat, mknodat, openat, openat2, symlinkat};
use rustix::io::{Errno, Result};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags,
    fsconfig_create, fsconfig_set_string, fsmount, fsopen, mount_change, move_mount, open_tree, unmount,
};

use crate::ceilings;
use crate::error::{Step, StepError};
use crate::in_flight;
use crate::protect::Pin;
use crate::sys::{MountAttributes, Recursive, mount_setattr};
use crate::view::{Entry, Kind, relative};
use crate::volume::OpenVolume;
use crate::walls::Walls;
use ringfence_core::{Access, Workspace};

const HARDENED: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NOSUID.union(MountAttrFlags::MOUNT_ATTR_NODEV);
const READ_ONLY: MountAttrFlags = HARDENED.union(MountAttrFlags::MOUNT_ATTR_RDONLY);

/// Pseudo-terminals of one sandbox. The host has 3072 for all devpts instances but its own (`kernel.pty.max` less
/// `kernel.pty.reserve`), which is enough for the default of 64 sessions.
const MAX_TERMINALS: &str = "32";

const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];

type Done = std::result::Result<(), StepError>;

/// Takes the host's directories by reference while they can still be opened as the user who started us.
pub(crate) fn open_sources(entries: &[Entry]) -> std::result::Result<Vec<OwnedFd>, StepError> {
    let mut sources = Vec::new();
    for entry in entries {
        if let Entry::Bind { host, .. } = entry {
            sources.push(clone_tree(CWD, &**host).step(|| format!("open {}", host.display()))?);
        }
    }
    Ok(sources)
}

/// Builds the root and makes it `/`.
pub(crate) fn build(
    entries: &[Entry],
    sources: Vec<OwnedFd>,
    volumes: &[OpenVolume],
    workspace: &Workspace,
    walls: &Walls,
) -> Done {
    // Nothing that happens here may travel to the host, nor the host's later mounts come here.
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .step(|| "make the mounts private".into())?;
    let devices = open_devices()?;
    let proc = new_file_system("proc", &[], HARDENED | MountAttrFlags::MOUNT_ATTR_NOEXEC)
        .step(|| "mount a private /proc".into())?;
    ceilings::lower(proc.as_fd())?;
    if walls.uid_is_shared {
        in_flight::unblock_datagram_senders(proc.as_fd())?;
    }
    let root = new_file_system("tmpfs", &[("mode", "0755"), ("size", "4m"), ("nr_inodes", "4096")], HARDENED)
        .step(|| "mount the root tmpfs".into())?;
    attach_root(&root)?;

    fill(&root, entries, sources)?;
    proc::mount(&root, &proc, walls)?;
    mount_writable(&root, workspace)?;
    mount_devices(&root, devices)?;
    for volume in volumes {
        mount_volume(&root, volume)?;
    }
    set(root.as_fd(), READ_ONLY, Recursive::No).step(|| "make the root read-only".into())?;
    enter(&root)
}

/// The new root needs some place in the old tree until it replaces it.
fn attach_root(root: &OwnedFd) -> Done {
    let places = ["/tmp", "/mnt", "/usr"];
    let attach = |place: &&str| move_mount(root, "", CWD, *place, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH);
    let mut result = Err(Errno::NOENT);
    for place in &places {
        result = attach(place);
        if result.is_ok() {
            break;
        }
    }
    result.step(|| format!("mount the root on one of {places:?}"))
}

fn fill(root: &OwnedFd, entries: &[Entry], sources: Vec<OwnedFd>) -> Done {
    let mut sources = sources.into_iter();
    for entry in entries {
        match entry {
            Entry::Directory { guest } => {
                mkdirat(root, guest, Mode::from_raw_mode(0o755)).step(|| format!("make {}", guest.display()))?;
            }
            Entry::Link { guest, target } => {
                symlinkat(target, root, guest).step(|| format!("link {}", guest.display()))?;
            }
            Entry::File { guest, text } => {
                write_file(root, guest, text).step(|| format!("write {}", guest.display()))?;
            }
            Entry::Bind { host, guest, kind } => {
                let describe = || format!("mount {}", host.display());
                let source = sources.next().ok_or(Errno::INVAL).step(describe)?;
                make_own_place(root, guest, *kind).step(describe)?;
                set(source.as_fd(), READ_ONLY, Recursive::Yes).step(describe)?;
                attach_own(source.as_fd(), root, guest).step(describe)?;
            }
        }
    }
    Ok(())
}

/// One tmpfs for all that the guest may write, so that one limit bounds it.
fn mount_writable(root: &OwnedFd, workspace: &Workspace) -> Done {
    let describe = || "mount the workspace".to_owned();
    let (bytes, inodes) = (workspace.bytes.to_string(), workspace.inodes.to_string());
    let options = [("mode", "0755"), ("size", &*bytes), ("nr_inodes", &*inodes)];
    let tmpfs = new_file_system("tmpfs", &options, HARDENED).step(describe)?;
    mkdirat(root, "dev/shm", Mode::from_raw_mode(0o755)).step(describe)?;
    // Parts of a tree can only be cloned once it is attached; /dev/shm hides this first mount again.
    attach_own(tmpfs.as_fd(), root, Path::new("dev/shm")).step(describe)?;
    for (part, mode, place) in [("workspace", 0o755, "workspace"), ("tmp", 0o1777, "tmp"), ("shm", 0o1777, "dev/shm")] {
        mkdirat(&tmpfs, part, Mode::from_raw_mode(mode)).step(describe)?;
        rustix::fs::chmodat(&tmpfs, part, Mode::from_raw_mode(mode), AtFlags::empty()).step(describe)?;
        let tree = clone_tree(&tmpfs, part).step(describe)?;
        attach_own(tree.as_fd(), root, Path::new(place)).step(describe)?;
    }
    Ok(())
}

fn open_devices() -> std::result::Result<Vec<OwnedFd>, StepError> {
    let open = |name: &&str| clone_tree(CWD, format!("/dev/{name}")).step(|| format!("open /dev/{name}"));
    DEVICES.iter().map(open).collect()
}

fn mount_devices(root: &OwnedFd, devices: Vec<OwnedFd>) -> Done {
    let describe = || "set up /dev".to_owned();
    for (name, device) in DEVICES.iter().zip(devices) {
        let place = Path::new("dev").join(name);
        make_own_place(root, &place, Kind::File).step(describe)?;
        // Device nodes cannot be made here, only borrowed: without `nodev`.
        let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        set(device.as_fd(), flags, Recursive::No).step(describe)?;
        attach_own(device.as_fd(), root, &place).step(describe)?;
    }
    let pts = new_file_system(
        "devpts",
        &[("newinstance", ""), ("ptmxmode", "0666"), ("mode", "0620"), ("max", MAX_TERMINALS)],
        MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC,
    )
    .step(|| "mount a private /dev/pts".into())?;
    make_own_place(root, Path::new("dev/pts"), Kind::Directory).step(describe)?;
    attach_own(pts.as_fd(), root, Path::new("dev/pts")).step(describe)?;
    let links = [
        ("pts/ptmx", "dev/ptmx"),
        ("/proc/self/fd", "dev/fd"),
        ("/proc/self/fd/0", "dev/stdin"),
        ("/proc/self/fd/1", "dev/stdout"),
        ("/proc/self/fd/2", "dev/stderr"),
    ];
    links.iter().try_for_each(|(target, place)| symlinkat(*target, root, *place)).step(describe)
}

fn mount_volume(root: &OwnedFd, volume: &OpenVolume) -> Done {
    let guest = relative(&volume.guest);
    let describe = || format!("mount volume {}", volume.guest.display());
    let flags = match volume.access {
        Access::ReadOnly => READ_ONLY,
        Access::ReadWrite => HARDENED,
    };
    make_mount_point(root, guest, volume.kind).step(describe)?;
    set(volume.tree.as_fd(), flags, Recursive::Yes).step(describe)?;
    attach(volume.tree.as_fd(), root, guest).step(describe)?;
    for (path, pin) in &volume.pins {
        mount_pin(root, &guest.join(path), *pin).step(|| format!("protect {} in a volume", path.display()))?;
    }
    Ok(())
}

/// Mounts a path of a volume over itself: a mount point cannot be renamed, replaced or removed.
fn mount_pin(root: &OwnedFd, path: &Path, pin: Pin) -> Result<()> {
    let place = open_beneath(root, path, if pin == Pin::Link { OFlags::NOFOLLOW } else { OFlags::empty() })?;
    if pin == Pin::Hidden {
        let empty = new_file_system("tmpfs", &[("mode", "0555"), ("size", "4k"), ("nr_inodes", "2")], READ_ONLY)?;
        return attach_at(empty.as_fd(), &place);
    }
    let tree = clone_tree(&place, "")?;
    if pin != Pin::Point {
        set(tree.as_fd(), READ_ONLY, Recursive::Yes)?;
    }
    attach_at(tree.as_fd(), &place)
}

/// Leaves the old root for good.
fn enter(root: &OwnedFd) -> Done {
    let describe = || "enter the new root".to_owned();
    rustix::process::fchdir(root).step(describe)?;
    // The old root ends up mounted over the new one, and is then taken off (pivot_root(2)).
    rustix::process::pivot_root(".", ".").step(describe)?;
    unmount(".", UnmountFlags::DETACH).step(describe)?;
    rustix::process::chdir("/").step(describe)
}

fn new_file_system(kind: &str, options: &[(&str, &str)], flags: MountAttrFlags) -> Result<OwnedFd> {
    let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in options {
        if value.is_empty() {
            rustix::mount::fsconfig_set_flag(&context, *key)?;
        } else {
            fsconfig_set_string(&context, *key, *value)?;
        }
    }
    fsconfig_create(&context)?;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, flags)
}

pub(crate) fn clone_tree(directory: impl AsFd, path: impl rustix::path::Arg) -> Result<OwnedFd> {
    open_tree(
        directory,
        path,
        OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC
            | OpenTreeFlags::AT_RECURSIVE
            | OpenTreeFlags::AT_EMPTY_PATH,
    )
}

fn set(tree: BorrowedFd<'_>, flags: MountAttrFlags, recursive: Recursive) -> Result<()> {
    mount_setattr(tree, &MountAttributes { set: flags.bits().into(), id_map: None }, recursive)
}

/// Mounts on a place of which every part is ours: only before the volumes, whose content is not, are there.
fn attach_own(tree: BorrowedFd<'_>, root: &OwnedFd, place: &Path) -> Result<()> {
    move_mount(tree, "", root, place, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
}

fn attach(tree: BorrowedFd<'_>, root: &OwnedFd, place: &Path) -> Result<()> {
    attach_at(tree, &open_beneath(root, place, OFlags::empty())?)
}

fn attach_at(tree: BorrowedFd<'_>, place: &OwnedFd) -> Result<()> {
    move_mount(tree, "", place, "", MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH)
}

/// Opens a place in the guest's tree without following any link: a volume's content is not ours.
fn open_beneath(root: &OwnedFd, path: &Path, flags: OFlags) -> Result<OwnedFd> {
    openat2(
        root,
        path,
        OFlags::PATH | OFlags::CLOEXEC | flags,
        Mode::empty(),
        ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS,
    )
}

/// Makes a place in a directory that is ours, for what is mounted with [`attach_own`].
fn make_own_place(root: &OwnedFd, path: &Path, kind: Kind) -> Result<()> {
    let made = match kind {
        Kind::Directory => mkdirat(root, path, Mode::from_raw_mode(0o755)),
        Kind::File => mknodat(root, path, FileType::RegularFile, Mode::from_raw_mode(0o644), 0),
    };
    match made {
        // An image may lack a directory on the way.
        Err(Errno::NOENT) => make_mount_point(root, path, kind),
        Err(Errno::EXIST) => Ok(()),
        made => made,
    }
}

/// Makes the place where something will be mounted, with the directories on the way.
fn make_mount_point(root: &OwnedFd, path: &Path, kind: Kind) -> Result<()> {
    let mut parent = open_beneath(root, Path::new("."), OFlags::DIRECTORY)?;
    let mut parts = path.components().peekable();
    while let Some(part) = parts.next() {
        let Component::Normal(name) = part else { return Err(Errno::INVAL) };
        if parts.peek().is_none() && kind == Kind::File {
            let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::EXCL;
            return match openat(&parent, name, flags, Mode::from_raw_mode(0o644)) {
                Err(Errno::EXIST) => Ok(()),
                result => result.map(drop),
            };
        }
        match mkdirat(&parent, name, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST | Errno::ROFS | Errno::ACCESS) => {}
            Err(error) => return Err(error),
        }
        parent = openat2(
            &parent,
            name,
            OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS,
        )?;
    }
    Ok(())
}

fn write_file(root: &OwnedFd, path: &Path, text: &str) -> Result<()> {
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::EXCL | OFlags::CLOEXEC;
    let file = openat(root, path, flags, Mode::from_raw_mode(0o644))?;
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        rest = &rest[rustix::io::write(&file, rest)?..];
    }
    Ok(())
}
