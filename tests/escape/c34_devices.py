"""Case 34: devices: memory, KVM, block devices, and new device nodes.

Attempted: to open dangerous devices and any block device; to create device nodes. Also checked: nodes in /dev beyond
the harmless ones, and mounts that honour device nodes.
Contained: no such device exists or can be opened, and mknod is refused.
Harmless: devices are opened and closed, block devices for reading; created nodes are removed at once.
"""

import errno
import os
import stat
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import attempt

DEVICES = ["mem", "kmem", "port", "kmsg", "kvm", "fuse", "loop-control", "net/tun", "vhost-net", "uinput"]
HARMLESS = {"null", "zero", "full", "random", "urandom", "tty", "ptmx", "console"}
DIRECTORIES = ["/", "/usr", os.getcwd(), "/tmp", "/dev/shm"]


def nodes():
    """Yields every device node below /dev except pseudo-terminals."""
    for directory, below, files in os.walk("/dev"):
        below[:] = [name for name in below if name != "pts"]
        for name in files:
            path = os.path.join(directory, name)
            mode = os.lstat(path).st_mode
            if stat.S_ISBLK(mode) or stat.S_ISCHR(mode):
                yield path, stat.S_ISBLK(mode)


def open_block_device():
    last = FileNotFoundError(errno.ENOENT, "none")
    for path, is_block in nodes():
        if is_block:
            try:
                attempt.open_and_close(path)
                return f"opened {path}"
            except OSError as error:
                last = error
    raise last


def make_node(kind, device):
    with attempt.scratch() as here:
        os.mknod(os.path.join(here, "node"), kind | 0o600, device)


def main():
    attempt.arguments(__doc__)
    for name in DEVICES:
        attempt.probe(
            f"/dev/{name}",
            lambda name=name: attempt.open_and_close(f"/dev/{name}", os.O_RDWR),
            [errno.ENOENT],
            {errno.ENOENT: f"this host has no /dev/{name}"},
        )
    none = {errno.ENOENT: "this host shows no block device"}
    attempt.probe("any block device", open_block_device, [errno.ENOENT], none)
    attempt.probe("mknod of the memory device", lambda: make_node(stat.S_IFCHR, os.makedev(1, 1)))
    attempt.probe("mknod of the null device", lambda: make_node(stat.S_IFCHR, os.makedev(1, 3)))
    attempt.probe("mknod of the root's block device", lambda: make_node(stat.S_IFBLK, os.stat("/").st_dev))
    others = sorted(path for path, _ in nodes() if path.removeprefix("/dev/") not in HARMLESS)
    attempt.report("other nodes in /dev", not others, f"{len(others)}: {', '.join(others[:5])}" if others else "none")
    honoured = [path for path in DIRECTORIES if not os.statvfs(path).f_flag & os.ST_NODEV]
    attempt.report("mounts that honour device nodes", not honoured, ", ".join(honoured) or "none")


main()
