"""Case 16: a new user namespace, and the capabilities in it.

Attempted: a new user namespace by unshare, clone (also with bits set above the flags that the kernel reads) and
clone3, then a mount in it; every other kind of namespace; joining the namespaces of the init.
Contained: each call is refused.
Harmless: everything happens in children that end at once; the mount is in their own mount namespace; the init of a bare
run is a child of the script.
"""

import errno
import os
import signal
import struct
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import attempt

KINDS = {
    "mount": attempt.CLONE_NEWNS,
    "PID": attempt.CLONE_NEWPID,
    "network": attempt.CLONE_NEWNET,
    "IPC": attempt.CLONE_NEWIPC,
    "UTS": attempt.CLONE_NEWUTS,
    "cgroup": attempt.CLONE_NEWCGROUP,
    "time": 0x80,
}


def unshare(flags):
    attempt.syscall("unshare", flags)


def reap(pid):
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def clone(flags):
    reap(attempt.syscall("clone", flags | signal.SIGCHLD, 0, 0, 0, 0))


def clone3(flags):
    reap(attempt.syscall("clone3", struct.pack("8Q", flags, 0, 0, 0, signal.SIGCHLD, 0, 0, 0), 64))


def unshare_then_mount():
    with attempt.scratch() as here:
        unshare(attempt.CLONE_NEWUSER | attempt.CLONE_NEWNS)
        attempt.syscall("mount", b"none", b"/", 0, attempt.MS_REC | attempt.MS_PRIVATE, 0)
        attempt.syscall("mount", b"none", here.encode(), b"tmpfs", 0, 0)
        attempt.syscall("umount2", here.encode(), 2)


def join(path):
    attempt.syscall("setns", os.open(path, os.O_RDONLY), 0)


def join_by_pidfd(pid):
    attempt.syscall("setns", attempt.syscall("pidfd_open", pid, 0), attempt.CLONE_NEWNS | attempt.CLONE_NEWNET)


def main():
    attempt.arguments(__doc__)
    user = attempt.CLONE_NEWUSER
    off = {errno.ENOSPC: "user namespaces are switched off on this host"}
    attempt.probe("new user namespace by unshare", lambda: unshare(user), absent=off)
    attempt.probe("new user namespace by clone", lambda: clone(user), absent=off)
    attempt.probe("new user namespace by clone with high bits", lambda: clone(user | 1 << 40), absent=off)
    attempt.probe("new user namespace by clone3", lambda: clone3(user), absent=off)
    attempt.probe("new user namespace, then mount", unshare_then_mount, absent=off)
    for kind, flag in KINDS.items():
        attempt.probe(f"new {kind} namespace by unshare", lambda flag=flag: unshare(flag))
    with attempt.init() as init:
        attempt.probe("init's mount namespace by setns", lambda: join(f"/proc/{init}/ns/mnt"))
        attempt.probe("init's network namespace by setns", lambda: join(f"/proc/{init}/ns/net"))
        attempt.probe("init's namespaces by pidfd", lambda: join_by_pidfd(init))


main()
