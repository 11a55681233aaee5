"""Case 23: open_by_handle_at, which opens a file by its number without checking directories.

Attempted: to open / by a handle that the kernel returned, and by a guessed handle of inode 2, the root of most file
systems.
Contained: refused before the handle is examined (ESTALE would mean that it was).
Harmless: a directory is opened for reading and closed.
"""

import ctypes
import errno
import os
import struct
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import attempt

AT_FDCWD = -100
FILEID_INO32_GEN = 1
MAX_HANDLE = 128


def open_given():
    handle = ctypes.create_string_buffer(struct.pack("Ii", MAX_HANDLE, 0), 8 + MAX_HANDLE)
    mount = ctypes.c_int()
    attempt.syscall("name_to_handle_at", AT_FDCWD, b"/", handle, mount, 0)
    open_handle("/", handle)


def open_guessed(mount):
    open_handle(mount, ctypes.create_string_buffer(struct.pack("IiII", 8, FILEID_INO32_GEN, 2, 0), 16))


def open_handle(mount, handle):
    os.close(attempt.syscall("open_by_handle_at", os.open(mount, os.O_RDONLY), handle, os.O_RDONLY))


def main():
    attempt.arguments(__doc__)
    absent = {errno.ENOSYS: "this kernel has no file handles", errno.EOPNOTSUPP: "/ has no file handles here"}
    attempt.probe("handle given by the kernel", open_given, also=[errno.EOPNOTSUPP], absent=absent)
    attempt.probe("guessed handle of the root of /", lambda: open_guessed("/"), absent=absent)
    attempt.probe("guessed handle of the root of /usr", lambda: open_guessed("/usr"), absent=absent)


main()
