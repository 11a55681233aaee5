"""Cases 35 and 36: symlinks that lead out of a volume, also in races.

Attempted: to read and to write files of `--outside` through symlinks planted in a volume, through `..` from its
top, through a directory that a thread exchanges with a symlink all the time, and by unpacking an archive with symlinks.
Contained: no file outside of the volume is read or created.
Harmless: `--outside` is a directory of the harness; created files are removed. A bare run of the race ends with its
first success.
"""

import contextlib
import errno
import io
import os
import sys
import tarfile
import threading
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import attempt

RACE_SECONDS = 1
RENAME_EXCHANGE, AT_FDCWD = 2, -100
GONE = [errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EROFS]


def read(path):
    with open(path) as file:
        file.read()


def plant(path):
    with open(path, "x"):
        pass
    os.unlink(path)


def through_link(volume, target, use, below=""):
    link = os.path.join(volume, "link")
    os.symlink(target, link)
    try:
        use(link + below)
    finally:
        os.unlink(link)


def race(volume, outside):
    """Reads `swapped/secret` while a thread exchanges the directory with a symlink; returns how often that succeeded."""
    swapped, link = os.path.join(volume, "swapped"), os.path.join(volume, "swapped-link")
    os.mkdir(swapped)
    os.symlink(outside, link)
    stop = threading.Event()

    def swap():
        while not stop.is_set():
            attempt.syscall("renameat2", AT_FDCWD, swapped.encode(), AT_FDCWD, link.encode(), RENAME_EXCHANGE)

    thread = threading.Thread(target=swap)
    thread.start()
    hits, end = 0, time.monotonic() + (RACE_SECONDS if attempt.SANDBOXED else attempt.DEADLINE_SECONDS)
    while time.monotonic() < end and (attempt.SANDBOXED or hits == 0):
        with contextlib.suppress(OSError):
            read(os.path.join(swapped, "secret"))
            hits += 1
    stop.set()
    thread.join()
    for path in (swapped, link):
        os.unlink(path) if os.path.islink(path) else os.rmdir(path)
    return hits


def unpack(volume, outside):
    """Unpacks an archive with a symlink to a directory outside, and a file below that symlink."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        link = tarfile.TarInfo("out")
        link.type, link.linkname = tarfile.SYMTYPE, outside
        archive.addfile(link)
        archive.addfile(tarfile.TarInfo("out/planted"))
    packed.seek(0)
    into, planted = os.path.join(volume, "unpacked"), os.path.join(outside, "planted")
    os.mkdir(into)
    try:
        with tarfile.open(fileobj=packed) as archive:
            # Trusts every member, as earlier versions of Python do by default.
            archive.extraction_filter = lambda member, path: member
            archive.extractall(into)
        os.unlink(planted)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(into, "out"))
        os.rmdir(into)


def main():
    args = attempt.arguments(__doc__)
    outside, secret = args.outside, os.path.join(args.outside, "secret")
    volume, read_only = os.path.join(args.volumes, "rw"), os.path.join(args.volumes, "ro")

    def probe(name, call, also=()):
        attempt.probe(name, call, [*GONE, *also])

    probe("file of the host through a planted symlink", lambda: through_link(volume, secret, read))
    probe("directory of the host through a planted symlink", lambda: through_link(volume, outside, read, "/secret"))
    probe("planting through a symlink", lambda: through_link(volume, outside, plant, "/planted"))
    up = os.path.relpath(outside, volume)
    probe("relative symlink out of the volume", lambda: through_link(volume, f"{up}/secret", read))
    probe("symlink that the read-only volume has already", lambda: read(os.path.join(read_only, "link-to-secret")))
    probe(".. from the volume's top", lambda: read(f"{volume}/../../outside/secret"))
    probe(".. from the read-only volume's top", lambda: read(f"{read_only}/../../outside/secret"))
    probe("archive with a symlink out of the volume", lambda: unpack(volume, outside), [errno.EEXIST])
    hits = race(volume, outside)
    attempt.report("directory exchanged for a symlink", hits == 0, f"{hits} reads of the file outside")


main()
