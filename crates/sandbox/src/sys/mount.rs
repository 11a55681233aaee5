//! Detached mounts: copies of trees, and their attributes.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Result;
use rustix::mount::{OpenTreeFlags, open_tree};

use super::check;

/// The attributes to set on a mount (`mount_setattr(2)`).
pub(crate) struct MountAttributes<'fd> {
    pub(crate) set: u64,
    /// A user namespace whose id map the mount gets.
    pub(crate) id_map: Option<BorrowedFd<'fd>>,
}

/// Whether an operation includes the mounts below a mount.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Recursive {
    Yes,
    No,
}

/// Sets attributes of the mount `tree`, and removes it from its peer group.
pub(crate) fn mount_setattr(
    tree: BorrowedFd<'_>,
    attributes: &MountAttributes<'_>,
    recursive: Recursive,
) -> Result<()> {
    let args = libc::mount_attr {
        attr_set: attributes.set | if attributes.id_map.is_some() { libc::MOUNT_ATTR_IDMAP } else { 0 },
        attr_clr: 0,
        // A copy of a mount is a peer of the original: a later mount on one of them would appear on both.
        propagation: libc::MS_PRIVATE,
        userns_fd: attributes.id_map.map_or(0, |fd| fd.as_raw_fd().cast_unsigned().into()),
    };
    let recursive = match recursive {
        Recursive::Yes => libc::AT_RECURSIVE,
        Recursive::No => 0,
    };
    // SAFETY: the path is a C string, `args` has the size that is passed, and both live through the call.
    check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH | recursive,
            &raw const args,
            size_of_val(&args),
        )
    })
    .map(drop)
}

/// Copies the mount at a path, with all mounts below it, as a detached mount. An empty path is `directory` itself.
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
