"""Case 30: descriptors that ringfence has not closed.

Attempted: to find any descriptor beyond 0, 1 and 2; to reopen the file of stdin with more rights.
In both runs, stdin is a file of the host that the harness has opened for reading only, and another descriptor of that
file is open without close-on-exec.
Contained: there is no other descriptor, and stdin cannot be opened for writing.
Harmless: the file is opened without truncating and closed.
"""

import errno
import os
import stat
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import attempt


def inherited():
    found = []
    for number in range(3, 4096):
        try:
            os.fstat(number)
        except OSError:
            continue
        try:
            found.append(f"{number} on {os.readlink(f'/proc/self/fd/{number}')}")
        except OSError:
            found.append(str(number))
    return found


def reopen_stdin():
    if not stat.S_ISREG(os.fstat(0).st_mode):
        raise OSError(errno.EPERM, "stdin is not the file")
    attempt.open_and_close("/proc/self/fd/0", os.O_RDWR)


def main():
    found = inherited()
    attempt.arguments(__doc__)
    attempt.report("descriptors beyond the standard ones", not found, ", ".join(found) or "none")
    attempt.probe("stdin opened again for writing", reopen_stdin, [errno.EROFS, errno.ENOENT, errno.ENXIO])


main()
