"""Processes, control groups, mounts and files of the host."""

import os
import pathlib
import subprocess
import tempfile
import time

# Prefix of the directories of this run; other runs may take place at the same time.
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
    """Returns whether the process exists and is no zombie."""
    state = text(f"/proc/{pid}/stat").rpartition(") ")[2][:1]
    return state not in ("", "Z", "X")


def inner_pid(pid):
    """Returns the pid of a process in its own PID namespace; that of an init is 1."""
    for line in text(f"/proc/{pid}/status").splitlines():
        if line.startswith("NSpid:"):
            return int(line.split()[-1])
    return 0


def descendants(roots):
    """Returns these processes and all that they have started."""
    parents = {pid: parent(pid) for pid in pids()}
    found, has_grown = set(roots), True
    while has_grown:
        children = {pid for pid, above in parents.items() if above in found} - found
        found, has_grown = found | children, bool(children)
    return found


def wait_until(failure, condition, seconds=30):
    """Waits until the condition is true, and returns its result; raises AssertionError after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (result := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(failure)
        time.sleep(0.05)
    return result


def sandbox_groups(pid):
    """Returns the names of the control groups of the sandbox that a process is in."""
    names = (line.rpartition("/")[2] for line in text(f"/proc/{pid}/cgroup").splitlines())
    return {name for name in names if name.startswith("ringfence-")}


def leftovers(groups):
    """Returns what this run has left: control groups among `groups`, mounts and directories."""
    found = subprocess.run(["find", "/sys/fs/cgroup", "-type", "d", "-name", "ringfence-*"], capture_output=True)
    existing = {os.path.basename(path) for path in found.stdout.decode().split()}
    mounts = [line for line in text("/proc/self/mounts").splitlines() if MARK in line]
    files = [name for name in os.listdir(tempfile.gettempdir()) if name.startswith(MARK)]
    return sorted(existing & groups) + mounts + files
