"""Case 66, and the leases of case 65: watching or delaying how others use shared files.

Attempted: inotify, dnotify and fanotify on a shared read-only tree, for events of access; a lease on a file; a query
of which parts of a shared file are in the page cache.
Contained: refused, or no event arrives.
Harmless: the script itself opens the watched files; the lease is on a file of the script.
"""

import ctypes
import errno
import fcntl
import os
import select
import signal
import struct
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import attempt

IN_ACCESS, IN_MODIFY, IN_CLOSE_NOWRITE, IN_OPEN, IN_MASK_ADD = 0x1, 0x2, 0x10, 0x20, 0x20000000
SHARED_DIRECTORY, SHARED_FILE = "/usr/bin", "/usr/bin/env"
X86 = os.uname().machine == "x86_64"
INOTIFY_INIT1, INOTIFY_ADD_WATCH = (294, 254) if X86 else (26, 27)
FANOTIFY_INIT, FANOTIFY_MARK, CACHESTAT = (300, 301, 451) if X86 else (262, 263, 451)
FAN_REPORT_FID = 0x200


def read_shared_file():
    with open(SHARED_FILE, "rb", buffering=0) as file:
        file.read(16)


def watch(mask, path=SHARED_DIRECTORY, flags=0, twice=False):
    """Succeeds if an event arrives. The kernel queues it before the call that causes it returns."""
    instance = attempt.syscall(INOTIFY_INIT1, flags | os.O_NONBLOCK)
    if twice:
        attempt.syscall(INOTIFY_ADD_WATCH, instance, path.encode(), IN_MODIFY)
        mask |= IN_MASK_ADD
    attempt.syscall(INOTIFY_ADD_WATCH, instance, path.encode(), mask)
    read_shared_file()
    if not select.select([instance], [], [], 0.2)[0]:
        raise OSError(errno.EACCES, "no event arrived")
    _, mask, _, length = struct.unpack_from("iIII", os.read(instance, 4096))
    return f"event {mask:#x} about a name of {length} bytes"


def directory_notification():
    signal.signal(signal.SIGIO, signal.SIG_IGN)
    directory = os.open(SHARED_DIRECTORY, os.O_RDONLY)
    fcntl.fcntl(directory, fcntl.F_NOTIFY, fcntl.DN_ACCESS)


def fanotify():
    instance = attempt.syscall(FANOTIFY_INIT, FAN_REPORT_FID, 0)
    attempt.syscall(FANOTIFY_MARK, instance, 1, 0x20, -100, SHARED_DIRECTORY.encode())


def lease():
    with attempt.scratch() as directory:
        path = os.path.join(directory, "file")
        with open(path, "w"):
            pass
        file = os.open(path, os.O_RDONLY)
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)


def page_cache():
    with open(SHARED_FILE, "rb") as file:
        whole_file, result = ctypes.create_string_buffer(16), ctypes.create_string_buffer(40)
        attempt.syscall(CACHESTAT, file.fileno(), whole_file, result, 0)


def main():
    attempt.arguments(__doc__)
    attempt.probe("opens in a directory", lambda: watch(IN_OPEN | IN_MODIFY))
    attempt.probe("opens alone", lambda: watch(IN_OPEN))
    attempt.probe("reads in a directory", lambda: watch(IN_ACCESS | IN_MODIFY))
    attempt.probe("closes in a directory", lambda: watch(IN_CLOSE_NOWRITE | IN_MODIFY))
    attempt.probe("opens of a file", lambda: watch(IN_OPEN | IN_MODIFY, SHARED_FILE))
    attempt.probe("opens added to a watch", lambda: watch(IN_OPEN | IN_MODIFY, twice=True))
    attempt.probe("opens with bits above the mask", lambda: watch(IN_OPEN | IN_MODIFY | 1 << 32))
    attempt.probe("opens with bits above the flags", lambda: watch(IN_OPEN | IN_MODIFY, flags=1 << 32))
    attempt.probe("directory notification", directory_notification, also=[errno.EINVAL])
    attempt.probe("fanotify", fanotify, absent={errno.ENOSYS: "this kernel has no fanotify"})
    attempt.probe("lease", lease, also=[errno.EINVAL])
    attempt.probe("contents of the page cache", page_cache, absent={errno.ENOSYS: "this kernel has no cachestat"})


main()
