"""Case 33: races on paths that are masked or read-only.

Attempted, for a second each: to open /proc/sys/kernel/core_pattern for writing through a symlink, and below a
directory, that another thread exchanges with a harmless one all the time; and by other names of the path.
Contained: only the harmless file was ever opened.
Harmless: nothing is written; opening the file has no effect. A bare run ends with its first success.
"""

import os
import sys
import threading
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import attempt

RACE_SECONDS = 1
DIRECTORY, NAME = "/proc/sys/kernel", "core_pattern"
TARGET = f"{DIRECTORY}/{NAME}"
RENAME_EXCHANGE = 2
AT_FDCWD = -100

SYMLINK = "symlink exchanged for another"
FILE = "file exchanged for a symlink"
BELOW = "directory exchanged for a symlink"


def race(swap, paths, harmless):
    """Opens `paths` repeatedly while a thread calls `swap`; returns how many times another file was opened."""
    stop = threading.Event()

    def swap_repeatedly():
        while not stop.is_set():
            swap()

    thread = threading.Thread(target=swap_repeatedly)
    thread.start()
    hits = 0
    end = time.monotonic() + (RACE_SECONDS if attempt.SANDBOXED else attempt.DEADLINE_SECONDS)
    while time.monotonic() < end and (attempt.SANDBOXED or hits == 0):
        for path in paths:
            try:
                opened = os.open(path, os.O_WRONLY)
            except OSError:
                continue
            found = os.fstat(opened)
            os.close(opened)
            hits += (found.st_dev, found.st_ino) != harmless
    stop.set()
    thread.join()
    return hits


def exchange(one, other):
    try:
        attempt.syscall("renameat2", AT_FDCWD, one.encode(), AT_FDCWD, other.encode(), RENAME_EXCHANGE)
    except OSError:
        os.rename(one, one + "-moved")
        os.rename(other, one)
        os.rename(one + "-moved", other)


def prepare(here, name):
    """Creates a harmless file, and the two entries of `here` that the race exchanges."""
    path = f"{here}/one" if name == FILE else f"{here}/harmless"
    if name == BELOW:
        os.mkdir(f"{here}/one")
        path = f"{here}/one/{NAME}"
    with open(path, "w") as file:
        harmless = os.fstat(file.fileno())
    if name == SYMLINK:
        os.symlink("harmless", f"{here}/one")
    os.symlink(DIRECTORY if name == BELOW else TARGET, f"{here}/other")
    return harmless.st_dev, harmless.st_ino


def other_names():
    aliases = [f"/proc/{who}/{way}{TARGET}" for who in ("self", "thread-self") for way in ("root", "task/../root")]
    aliases += [f"/proc/self/../{TARGET[6:]}", f"/dev/../{TARGET}", f"/{TARGET}"]
    aliases.append(f"/proc/self/cwd/{'../' * 40}{TARGET}")
    return aliases + ([f"/proc/1/root{TARGET}"] if attempt.SANDBOXED else [])


def main():
    attempt.arguments(__doc__)
    for name in (SYMLINK, FILE, BELOW):
        with attempt.scratch() as here:
            harmless = prepare(here, name)
            path = f"{here}/one/{NAME}" if name == BELOW else f"{here}/one"
            hits = race(lambda: exchange(f"{here}/one", f"{here}/other"), [path], harmless)
        attempt.report(name, hits == 0, f"{hits} hits")
    hits = race(lambda: os.path.exists(TARGET), other_names(), None)
    attempt.report("other names of the path", hits == 0, f"{hits} hits")


main()
