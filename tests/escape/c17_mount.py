"""Case 17: changing the mounts, with the old system calls and the new ones.

Attempted: mount, bind, remount of / as writable, umount, pivot_root, chroot, fsopen, fspick, open_tree, move_mount,
mount_setattr.
Contained: each call is refused.
Harmless: each runs in a child, in a bare run in a new mount namespace; the remount changes the flags of that mount
only, not those of the file system; pivot_root names directories that do not exist.
"""

import os
import struct
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import attempt

MS_REMOUNT, MS_BIND, MS_MOVE = 32, 4096, 8192
MNT_DETACH = 2
AT_FDCWD = -100
OPEN_TREE_CLONE, MOVE_MOUNT_F_EMPTY_PATH = 1, 4
FSCONFIG_CMD_CREATE = 6
MOUNT_ATTR_NOSUID = 2


def tmpfs(here):
    attempt.syscall("mount", b"none", here, b"tmpfs", 0, 0)


def bind(here):
    attempt.syscall("mount", b"/usr", here, 0, MS_BIND, 0)


def move(here):
    tmpfs(here)
    os.mkdir(here + b"/onto")
    tmpfs(here + b"/onto")
    os.mkdir(here + b"/again")
    attempt.syscall("mount", here + b"/onto", here + b"/again", 0, MS_MOVE, 0)


def remount_writable(_):
    attempt.syscall("mount", b"none", b"/", 0, MS_REMOUNT | MS_BIND, 0)


def unmount(_):
    attempt.syscall("umount2", b"/proc", MNT_DETACH)


def pivot_root(_):
    attempt.syscall("pivot_root", b"/no/such/root", b"/no/such/root/old")


def chroot(here):
    attempt.syscall("chroot", here)


def open_file_system():
    context = attempt.syscall("fsopen", b"tmpfs", 0)
    attempt.syscall("fsconfig", context, FSCONFIG_CMD_CREATE, 0, 0, 0)
    return attempt.syscall("fsmount", context, 0, 0)


def fsopen(_):
    attempt.syscall("fsopen", b"tmpfs", 0)


def fsopen_then_move_mount(here):
    attempt.syscall("move_mount", open_file_system(), b"", AT_FDCWD, here, MOVE_MOUNT_F_EMPTY_PATH)


def move_mount(here):
    # Both paths exist and neither is a mount point: the kernel returns EINVAL if the call is not blocked.
    attempt.syscall("move_mount", AT_FDCWD, here, AT_FDCWD, here, 0)


def fspick(_):
    attempt.syscall("fspick", AT_FDCWD, b"/", 0)


def open_tree(_):
    attempt.syscall("open_tree", AT_FDCWD, b"/", OPEN_TREE_CLONE)


def mount_setattr(here):
    # struct mount_attr: set, clear, propagation, userns
    attempt.syscall("mount_setattr", AT_FDCWD, b"/", 0, struct.pack("4Q", MOUNT_ATTR_NOSUID, 0, 0, 0), 32)


ATTEMPTS = {
    "mount of a tmpfs": tmpfs,
    "bind mount": bind,
    "move of a mount": move,
    "remount of / as writable": remount_writable,
    "umount of /proc": unmount,
    "pivot_root": pivot_root,
    "chroot": chroot,
    "fsopen": fsopen,
    "fsopen, then move_mount": fsopen_then_move_mount,
    "move_mount": move_mount,
    "fspick": fspick,
    "open_tree as a copy": open_tree,
    "mount_setattr": mount_setattr,
}


def main():
    attempt.arguments(__doc__)
    for name, call in ATTEMPTS.items():
        with attempt.scratch() as here:

            def run(call=call, here=here.encode()):
                attempt.unshare_bare(attempt.CLONE_NEWNS)
                call(here)

            attempt.probe(name, run)


main()
