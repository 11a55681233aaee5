"""Case 33: races on paths that are masked or read-only.

Attempted, for a second each: to open /proc/sys/kernel/core_pattern for writing through a symlink, and below a
directory, that another thread keeps exchanging with an innocent one; and by every other name the path has.
Contained: no descriptor on anything but the innocent file came out.
Harmless: nothing is written; opening the file has no effect.
"""

import os
import sys
import threading
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import attempt

SECONDS = 1
DIRECTORY, NAME = "/proc/sys/kernel", "core_pattern"
TARGET = f"{DIRECTORY}/{NAME}"
RENAME_EXCHANGE = 2
AT_FDCWD = -100

SYMLINK = "symlink exchanged for another"
FILE = "file exchanged for a symlink"
BELOW = "directory exchanged for a symlink"


def race(flip, paths, innocent):
    """Opens `paths` over and over while a thread calls `flip`; returns how many opens hit another file."""
    stop = threading.Event()

    def keep_flipping():
        while not stop.is_set():
            flip()

    thread = threading.Thread(target=keep_flipping)
    thread.start()
    hits = 0
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        for path in paths:
            try:
                opened = os.open(path, os.O_WRONLY)
            except OSError:
                continue
            found = os.fstat(opened)
            os.close(opened)
            hits += (found.st_dev, found.st_ino) != innocent
    stop.set()
    thread.join()
    return hits


def exchange(one, other):
    try:
        attempt.syscall("renameat2", AT_FDCWD, one.encode(), AT_FDCWD, other.encode(), RENAME_EXCHANGE)
    except OSError:
        os.rename(one, one + "-aside")
        os.rename(other, one)
        os.rename(one + "-aside", other)


def prepare(here, name):
    """Makes an innocent file, and the two entries of `here` that the race exchanges."""
    path = f"{here}/one" if name == FILE else f"{here}/innocent"
    if name == BELOW:
        os.mkdir(f"{here}/one")
        path = f"{here}/one/{NAME}"
    with open(path, "w") as file:
        innocent = os.fstat(file.fileno())
    if name == SYMLINK:
        os.symlink("innocent", f"{here}/one")
    os.symlink(DIRECTORY if name == BELOW else TARGET, f"{here}/other")
    return innocent.st_dev, innocent.st_ino


def other_names():
    aliases = [f"/proc/{who}/{way}{TARGET}" for who in ("self", "thread-self") for way in ("root", "task/../root")]
    aliases += [f"/proc/self/../{TARGET[6:]}", f"/dev/../{TARGET}", f"/{TARGET}"]
    aliases.append(f"/proc/self/cwd/{'../' * 40}{TARGET}")
    return aliases + ([f"/proc/1/root{TARGET}"] if attempt.SANDBOXED else [])


def main():
    attempt.arguments(__doc__)
    for name in (SYMLINK, FILE, BELOW):
        with attempt.scratch() as here:
            innocent = prepare(here, name)
            path = f"{here}/one/{NAME}" if name == BELOW else f"{here}/one"
            hits = race(lambda: exchange(f"{here}/one", f"{here}/other"), [path], innocent)
        attempt.report(name, hits == 0, f"{hits} hits")
    hits = race(lambda: os.path.exists(TARGET), other_names(), None)
    attempt.report("other names of the path", hits == 0, f"{hits} hits")


main()
