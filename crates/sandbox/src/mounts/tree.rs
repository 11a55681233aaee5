//! File systems, mount points and attributes, for the other modules of `mounts`.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Component, Path};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, mkdirat, mknodat, openat, openat2};
use rustix::io::{Errno, Result};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string,
    fsmount, fsopen, move_mount,
};

use crate::sys::{MountAttributes, Recursive, mount_setattr};
use crate::volumes::NodeKind;

pub(super) const HARDENED: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NOSUID.union(MountAttrFlags::MOUNT_ATTR_NODEV);
pub(super) const READ_ONLY: MountAttrFlags = HARDENED.union(MountAttrFlags::MOUNT_ATTR_RDONLY);

/// Creates a detached mount of a new file system. An option with an empty value is a flag.
pub(super) fn new_file_system(kind: &str, options: &[(&str, &str)], flags: MountAttrFlags) -> Result<OwnedFd> {
    let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in options {
        if value.is_empty() {
            fsconfig_set_flag(&context, *key)?;
        } else {
            fsconfig_set_string(&context, *key, *value)?;
        }
    }
    fsconfig_create(&context)?;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, flags)
}

pub(super) fn set_attributes(tree: BorrowedFd<'_>, flags: MountAttrFlags, recursive: Recursive) -> Result<()> {
    mount_setattr(tree, &MountAttributes { set: flags.bits().into(), id_map: None }, recursive)
}

/// Mounts on a path of which the init has made every component. Only before volumes are mounted: their contents are not
/// trusted.
pub(super) fn attach_trusted(tree: BorrowedFd<'_>, root: &OwnedFd, path: &Path) -> Result<()> {
    move_mount(tree, "", root, path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
}

/// Mounts on a path that may be inside a volume.
pub(super) fn attach(tree: BorrowedFd<'_>, root: &OwnedFd, path: &Path) -> Result<()> {
    attach_at(tree, &open_beneath(root, path, OFlags::empty())?)
}

pub(super) fn attach_at(tree: BorrowedFd<'_>, mount_point: &OwnedFd) -> Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(tree, "", mount_point, "", flags)
}

/// Opens a path in the guest's tree without following links, because the contents of a volume are not trusted.
pub(super) fn open_beneath(root: &OwnedFd, path: &Path, flags: OFlags) -> Result<OwnedFd> {
    openat2(
        root,
        path,
        OFlags::PATH | OFlags::CLOEXEC | flags,
        Mode::empty(),
        ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS,
    )
}

/// Makes a mount point for [`attach_trusted`], usually with one system call.
pub(super) fn make_trusted_mount_point(root: &OwnedFd, path: &Path, kind: NodeKind) -> Result<()> {
    let made = match kind {
        NodeKind::Directory => mkdirat(root, path, Mode::from_raw_mode(0o755)),
        NodeKind::File => mknodat(root, path, FileType::RegularFile, Mode::from_raw_mode(0o644), 0),
    };
    match made {
        // An image may lack a parent directory.
        Err(Errno::NOENT) => make_mount_point(root, path, kind),
        Err(Errno::EXIST) => Ok(()),
        made => made,
    }
}

/// Makes a mount point and its parent directories, on a path that may be inside a volume.
pub(super) fn make_mount_point(root: &OwnedFd, path: &Path, kind: NodeKind) -> Result<()> {
    let mut parent = open_beneath(root, Path::new("."), OFlags::DIRECTORY)?;
    let mut parts = path.components().peekable();
    while let Some(part) = parts.next() {
        let Component::Normal(name) = part else { return Err(Errno::INVAL) };
        if parts.peek().is_none() && kind == NodeKind::File {
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

/// Writes a new file, which is executable if it is a script.
pub(super) fn write_file(root: &OwnedFd, path: &Path, text: &str) -> Result<()> {
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::EXCL | OFlags::CLOEXEC;
    let mode = if text.starts_with("#!") { 0o755 } else { 0o644 };
    let file = openat(root, path, flags, Mode::from_raw_mode(mode))?;
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        rest = &rest[rustix::io::write(&file, rest)?..];
    }
    Ok(())
}
