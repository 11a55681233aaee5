"""Case 65: locks and leases on volumes, which the host would wait for when it makes the next sandbox.

Takes every kind of lock on the top of the volume `rw` and on all that lies in it, says so, and keeps them until its
standard input ends.
Contained: another sandbox on the same volume starts meanwhile; the harness tells.
Harmless: the volumes are the harness's own, and the locks end with the process.
"""

import fcntl
import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import attempt


def lock(path):
    """Opens a path and takes what can be had on it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    for lease in (fcntl.F_WRLCK, fcntl.F_RDLCK):
        try:
            fcntl.fcntl(descriptor, fcntl.F_SETLEASE, lease)
            break
        except OSError:
            continue
    return descriptor


def main():
    args = attempt.arguments(__doc__)
    top = os.path.join(args.volumes, "rw")
    paths = [top]
    for directory, directories, files in os.walk(top):
        paths.extend(os.path.join(directory, name) for name in directories + files)
    held = [lock(path) for path in paths]
    attempt.left_to_harness("lock a volume", f"{sum(descriptor is not None for descriptor in held)} locks")
    sys.stdin.read()


main()
