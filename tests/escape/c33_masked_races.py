"""Case 33: races on paths that are masked or read-only.

Attempted, for a second each: to open /proc/sys/kernel/core_pattern for writing through a symlink, and below a directory,
that another thread keeps exchanging with an innocent one; and by every other name the path has.
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


def prepare(here):
    os.mkdir(f"{here}/directory")
    with open(f"{here}/directory/{NAME}", "w") as file:
        innocent = os.fstat(file.fileno())
    os.symlink(f"directory/{NAME}", f"{here}/good")
    os.symlink(TARGET, f"{here}/bad")
    os.link(f"{here}/directory/{NAME}", f"{here}/file")
    os.mkdir(f"{here}/below")
    os.link(f"{here}/directory/{NAME}", f"{here}/below/{NAME}")
    os.symlink(DIRECTORY, f"{here}/outside")
    return innocent.st_dev, innocent.st_ino


def main():
    attempt.arguments(__doc__)
    aliases = [f"/proc/{who}/{way}{TARGET}" for who in ("self", "thread-self", "1") for way in ("root", "task/1/root")]
    aliases += [f"/proc/self/../{TARGET[6:]}", f"/dev/../{TARGET}", f"/proc/self/cwd/{'../' * 40}{TARGET}", f"/{TARGET}"]
    if not attempt.SANDBOXED:
        aliases = [path for path in aliases if not path.startswith("/proc/1/")]
    with attempt.scratch() as here:
        innocent = prepare(here)
        races = {
            "symlink exchanged for another": (lambda: exchange(f"{here}/good", f"{here}/bad"), [f"{here}/good"]),
            "file exchanged for a symlink": (lambda: exchange(f"{here}/file", f"{here}/bad"), [f"{here}/file"]),
            "directory exchanged for a symlink": (
                lambda: exchange(f"{here}/below", f"{here}/outside"),
                [f"{here}/below/{NAME}"],
            ),
            "other names of the path": (lambda: os.path.exists(TARGET), aliases),
        }
        for name, (flip, paths) in races.items():
            hits = race(flip, paths, innocent)
            attempt.report(name, hits == 0, f"{hits} hits")


main()
