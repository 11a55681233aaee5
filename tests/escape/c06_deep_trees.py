"""Case 6: trees that are hard to remove: very deep, with long and unusual names, without permissions.

Attempted: to leave behind a tree of 1,200 levels of 200-byte names (far beyond PATH_MAX), 200 names of 255 unusual
bytes, and a directory without permissions that contains a file.
Contained: the process in the sandbox survives; it leaves the trees, and the harness checks that none of them is left on
the host. In a bare run, a tree that outlives the process is not contained.
Harmless: fewer than 2,000 empty directories; a bare run removes them after it has found them.
"""

import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import attempt

LEVELS = 1200
LEVEL = "d" * 200
ODD = [b"%03d" % n + b"\n\xff\x1b[31m*?'\" " * 24 for n in range(200)]


def deep():
    made = 0
    try:
        while made < LEVELS:
            os.mkdir(LEVEL)
            os.chdir(LEVEL)
            made += 1
    except OSError as error:
        return f"{made} levels, then {attempt.errno_name(error.errno)}"
    return f"{made} levels"


def undo_deep():
    depth = 0
    while os.path.isdir(LEVEL):
        os.chdir(LEVEL)
        depth += 1
    for _ in range(depth):
        os.chdir("..")
        os.rmdir(LEVEL)
    return depth


def odd_names():
    made = 0
    try:
        for name in ODD:
            os.mkdir(name[:255])
            made += 1
    except OSError as error:
        return f"{made} names, then {attempt.errno_name(error.errno)}"
    return f"{made} names"


def undo_odd_names():
    left = [name for name in os.listdir(b".") if len(name) > 200]
    for name in left:
        os.rmdir(name)
    return len(left)


def closed():
    os.mkdir("closed")
    os.close(os.open("closed/file", os.O_CREAT | os.O_WRONLY, 0))
    os.chmod("closed", 0)
    return "made"


def undo_closed():
    left = os.path.isdir("closed")
    os.chmod("closed", 0o700)
    os.unlink("closed/file")
    os.rmdir("closed")
    return int(left)


TREES = {
    "very deep tree": (deep, undo_deep),
    "long and odd names": (odd_names, undo_odd_names),
    "directory without permissions": (closed, undo_closed),
}


def inside():
    for name, (make, _) in TREES.items():
        saw = attempt.in_child(make).value
        attempt.report(name, saw is not None, f"{saw}, left for the runner to clean up")


def outside():
    for name, (make, undo) in TREES.items():
        with attempt.scratch() as here:
            os.chdir(here)
            saw = attempt.in_child(make).value
            survived = undo()
            os.chdir("/")
        attempt.report(name, survived == 0, f"{saw}, {survived} survived the process")


attempt.arguments(__doc__)
inside() if attempt.SANDBOXED else outside()
