"""Case 65: locks and leases on volumes, for which the host would wait when it starts the next sandbox.

Takes every kind of lock on the volume `rw` and everything in it, reports it, and holds them until the end of its
standard input.
Contained: the harness checks that another sandbox with the same volume starts meanwhile.
Harmless: the volumes belong to the harness, and the locks end with the process.
"""

import fcntl
import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import attempt


def lock(path):
    """Opens a path, and takes a lock and, if possible, a lease."""
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
