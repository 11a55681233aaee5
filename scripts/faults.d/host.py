"""Processes and what else the host holds."""

import os
import pathlib
import subprocess
import tempfile
import time

# What every directory of ours begins with; of this run alone, since others may run beside it.
MARK = f"ringfence-faults-{os.getpid()}-"


def text(path):
    try:
        return pathlib.Path(path).read_bytes().decode(errors="replace")
    except OSError:
        return ""


def pids():
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def parent(pid):
    fields = text(f"/proc/{pid}/stat").rpartition(") ")[2].split()
    return int(fields[1]) if fields else 0


def is_alive(pid):
    """A zombie waits for whoever started it, and does nothing more."""
    state = text(f"/proc/{pid}/stat").rpartition(") ")[2][:1]
    return state not in ("", "Z", "X")


def inner_pid(pid):
    """Its number in its own PID namespace: 1 is an init."""
    for line in text(f"/proc/{pid}/status").splitlines():
        if line.startswith("NSpid:"):
            return int(line.split()[-1])
    return 0


def descendants(roots):
    parents = {pid: parent(pid) for pid in pids()}
    found, grown = set(roots), True
    while grown:
        more = {pid for pid, above in parents.items() if above in found} - found
        found, grown = found | more, bool(more)
    return found


def eventually(what, holds, seconds=30):
    deadline = time.monotonic() + seconds
    while not (held := holds()):
        if time.monotonic() > deadline:
            raise AssertionError(what)
        time.sleep(0.05)
    return held


def own_groups(pid):
    """The cgroups of a sandbox that it is in."""
    names = (line.rpartition("/")[2] for line in text(f"/proc/{pid}/cgroup").splitlines())
    return {name for name in names if name.startswith("ringfence-")}


def left(groups):
    """What of ours is still there: cgroups that were seen, mounts, and directories."""
    found = subprocess.run(["find", "/sys/fs/cgroup", "-type", "d", "-name", "ringfence-*"], capture_output=True)
    there = {os.path.basename(path) for path in found.stdout.decode().split()}
    mounts = [line for line in text("/proc/self/mounts").splitlines() if MARK in line]
    files = [name for name in os.listdir(tempfile.gettempdir()) if name.startswith(MARK)]
    return sorted(there & groups) + mounts + files
