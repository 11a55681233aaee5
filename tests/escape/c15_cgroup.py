"""Case 15: leaving or changing the cgroup.

Attempted: to open any cgroup.procs or release_agent for writing, to create a child cgroup, to mount the cgroup file
systems, to create a cgroup namespace.
Contained: no such file is visible or can be opened, and the calls are refused.
Harmless: files are opened and closed, never written; a created cgroup is removed at once; mounts are made in a mount
namespace of a child.
"""

import errno
import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import attempt


def cgroup_mounts():
    found = ["/sys/fs/cgroup"]
    try:
        with open("/proc/self/mountinfo") as mounts:
            for line in mounts:
                fields = line.split()
                if fields[fields.index("-") + 1] in ("cgroup", "cgroup2"):
                    found.append(fields[4])
    except OSError:
        pass
    return found


def directories(names):
    """Yields files of the cgroup file systems with one of these names, from a bounded number of directories."""
    seen = 0
    for mount in cgroup_mounts():
        for path, _, files in os.walk(mount):
            seen += 1
            if seen > 2000:
                return
            for name in names:
                if name in files:
                    yield os.path.join(path, name)


def open_any(*names):
    last = FileNotFoundError(errno.ENOENT, "none is visible")
    for path in directories(names):
        try:
            attempt.open_and_close(path, os.O_WRONLY)
            return f"opened {path}"
        except OSError as error:
            last = error
    raise last


def make_child():
    last = FileNotFoundError(errno.ENOENT, "none is visible")
    for procs in directories(["cgroup.procs"]):
        path = os.path.join(os.path.dirname(procs), "escape-probe")
        try:
            os.mkdir(path)
            os.rmdir(path)
            return f"made {path}"
        except OSError as error:
            last = error
    raise last


def mount(kind, options):
    attempt.unshare_bare(attempt.CLONE_NEWNS)
    with attempt.scratch() as here:
        attempt.syscall("mount", b"none", here.encode(), kind, 0, options)
        attempt.syscall("umount2", here.encode(), 2)


def main():
    attempt.arguments(__doc__)
    none = [errno.ENOENT, errno.EROFS]
    no_cgroups = {errno.ENOENT: "this host shows no cgroup file system"}
    attempt.probe("cgroup.procs for writing", lambda: open_any("cgroup.procs", "tasks"), none, no_cgroups)
    attempt.probe(
        "release_agent for writing",
        lambda: open_any("release_agent"),
        none,
        {errno.ENOENT: "this host has no cgroup v1 hierarchy"},
    )
    attempt.probe("child cgroup", make_child, none, no_cgroups)
    attempt.probe("mount of cgroup2", lambda: mount(b"cgroup2", 0))
    attempt.probe(
        "mount of cgroup v1",
        lambda: mount(b"cgroup", b"memory"),
        absent={errno.ENODEV: "this kernel has no cgroup v1", errno.EINVAL: "this kernel has no cgroup v1 memory"},
    )
    attempt.probe("new cgroup namespace", lambda: attempt.syscall("unshare", attempt.CLONE_NEWCGROUP))


main()
