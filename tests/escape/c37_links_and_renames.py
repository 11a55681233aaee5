"""Case 37: hard links and renames of files, volumes and their parent; writing to a read-only volume.

Attempted: to change a read-only volume in every way; to link or move files between it and a writable one; to rename
a volume; to move the working directory out of its volume, and to continue from there.
Contained: each is refused, and the last leads to no file outside.
Harmless: the directories belong to the harness; moved entries are moved back.
"""

import errno
import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import attempt

BLOCKED = [errno.EROFS, errno.EXDEV, errno.EBUSY, errno.ENOENT]


def write(path, flags=0):
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | flags, 0o600))


def make_and_remove(make, remove, path):
    make(path)
    remove(path)


def link_and_remove(origin, name):
    os.link(origin, name)
    os.unlink(name)


def move_and_back(origin, name):
    os.rename(origin, name)
    os.rename(name, origin)


def rename_over(fresh, existing):
    """Renames a new file over an existing one, and restores the content."""
    with open(existing, "rb") as file:
        before = file.read()
    write(fresh)
    try:
        os.rename(fresh, existing)
    except OSError:
        os.unlink(fresh)
        raise
    with open(existing, "wb") as file:
        file.write(before)


def walk_out(volumes):
    """Moves the working directory out of its volume through another volume that contains both, and opens `..`."""
    origin, moved = os.path.join(volumes, "rw/inner/way"), os.path.join(volumes, "rw/way")
    os.mkdir(origin)
    os.chdir(os.path.join(volumes, "inner/way"))
    os.rename(origin, moved)
    try:
        with open("../../../outside/secret"):
            pass
    finally:
        os.chdir("/")
        os.rmdir(moved)


def main():
    args = attempt.arguments(__doc__)
    writable, fixed = os.path.join(args.volumes, "rw"), os.path.join(args.volumes, "ro")
    file, fresh = os.path.join(fixed, "file"), os.path.join(fixed, "fresh")
    mine = os.path.join(writable, "mine")
    # In a bare run hard links must work, which needs a directory on the same file system.
    tmp = "/tmp" if attempt.SANDBOXED else os.path.dirname(args.outside)

    def probe(name, call):
        attempt.probe(f"read-only volume: {name}", call, BLOCKED)

    probe("open for writing", lambda: write(file))
    probe("open by way of /proc/self/fd", lambda: write(f"/proc/self/fd/{os.open(file, os.O_RDONLY)}"))
    probe("open by way of a path descriptor", lambda: write(f"/proc/self/fd/{os.open(file, os.O_PATH)}"))
    probe("new file", lambda: make_and_remove(write, os.unlink, fresh))
    probe("new directory", lambda: make_and_remove(os.mkdir, os.rmdir, fresh))
    probe("new symlink", lambda: make_and_remove(lambda path: os.symlink("x", path), os.unlink, fresh))
    probe("new hard link", lambda: link_and_remove(file, fresh))
    probe("hard link into the writable volume", lambda: link_and_remove(file, mine))
    probe("hard link into /tmp", lambda: link_and_remove(file, os.path.join(tmp, "escape-link")))
    probe("rename", lambda: move_and_back(file, fresh))
    probe("move into the writable volume", lambda: move_and_back(file, mine))
    probe("rename over a file", lambda: rename_over(mine, file))
    probe("change of mode", lambda: os.chmod(file, 0o600))
    probe("change of time", lambda: os.utime(file, (1, 1)))
    probe("extended attribute", lambda: os.setxattr(file, "user.escape", b"x"))
    for name in ("rw", "ro"):
        path = os.path.join(args.volumes, name)
        attempt.probe(f"rename of the volume {name}", lambda path=path: move_and_back(path, path + "-moved"), BLOCKED)
    parent = args.volumes
    attempt.probe("rename of the volumes' parent", lambda: move_and_back(parent, parent + "-moved"), BLOCKED)
    attempt.probe("directory moved out of its volume, then ..", lambda: walk_out(args.volumes), BLOCKED)


main()
