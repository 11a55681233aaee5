"""Cases 41 and 42: planting what a program outside would run or obey: git hooks, editor and MCP settings, rc files.

Attempted, for every protected name in the volumes `rw` (a project) and `home`, whether it is there or not: to write
it, or something in it; to remove it; to put a file, a directory or a symlink in its place, also by exchanging; to
link it elsewhere and write there; to set its time, by which the runner knows its own placeholders.
Contained: each is refused. The harness also compares the volumes on the host before and after.
Harmless: outside, the volumes are the harness's own, and each attempt is undone.
"""

import errno
import os
import shutil
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import attempt

PROJECT = [".git", ".mcp.json", ".vscode", ".cursor", ".claude", ".envrc", "ringfence.toml"]
HOME = [".bashrc", ".bash_profile", ".profile", ".zshrc", ".zshenv", ".zprofile"]
WHERE_PRESENT = [".venv", "venv"]
IN_DIRECTORIES = {
    ".git": "hooks/pre-commit",
    ".vscode": "tasks.json",
    ".cursor": "mcp.json",
    ".claude": "settings.json",
    ".venv": "bin/activate",
    "venv": "bin/activate",
}
WALLS = [errno.EROFS, errno.EXDEV, errno.EBUSY]
RENAME_EXCHANGE, AT_FDCWD = 2, -100


def remove(path):
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)


class Kept:
    """Remembers what is at a path, and puts it back."""

    def __init__(self, path):
        self.path, self.aside = path, path + "-kept"

    def __enter__(self):
        if not attempt.SANDBOXED and os.path.lexists(self.path):
            copy = shutil.copytree if os.path.isdir(self.path) else shutil.copy2
            copy(self.path, self.aside)

    def __exit__(self, *_):
        if not attempt.SANDBOXED:
            remove(self.path)
            if os.path.lexists(self.aside):
                os.rename(self.aside, self.path)


def write(path):
    """Appends to the file, or to the one in the directory that would be obeyed, which is made."""
    inner = IN_DIRECTORIES.get(os.path.basename(path))
    if inner:
        path = os.path.join(path, inner)
        os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "a") as file:
        file.write("planted\n")


def take_away(path):
    if os.path.isdir(path):
        os.rename(path, path + "-away")
        shutil.rmtree(path + "-away")
    else:
        os.unlink(path)


def beside(path):
    return os.path.join(os.path.dirname(path), "planted")


def replace(path, make):
    """Makes something beside, and renames it over the name."""
    make(beside(path))
    try:
        os.rename(beside(path), path)
    finally:
        remove(beside(path))


def make_like(path):
    """A new entry of the kind that may be renamed over `path`."""
    if os.path.isdir(path):
        os.mkdir(beside(path))
    else:
        write_file(beside(path))


def write_file(path):
    with open(path, "x") as file:
        file.write("planted\n")


def exchange(path):
    make_like(path)
    try:
        attempt.syscall("renameat2", AT_FDCWD, beside(path).encode(), AT_FDCWD, path.encode(), RENAME_EXCHANGE)
    finally:
        remove(beside(path))


def link_and_write(path):
    """A second name for the protected file, by which it could be written."""
    inner = os.path.join(path, "config") if os.path.isdir(path) else path
    os.link(inner, beside(path))
    remove(beside(path))


def attack(path, present):
    """Every way in turn; the first that gets through is told."""
    like = os.mkdir if os.path.isdir(path) else write_file
    ways = {
        "write": lambda: write(path),
        "rename over": lambda: replace(path, like),
        "symlink over": lambda: replace(path, lambda p: os.symlink("/nowhere", p)),
    }
    if present:
        ways |= {
            "remove": lambda: take_away(path),
            "exchange": lambda: exchange(path),
            "time": lambda: os.utime(path, (0, 0)),
            "mode": lambda: os.chmod(path, 0o777),
        }
        if os.path.isfile(path) or os.path.exists(os.path.join(path, "config")):
            ways["hard link"] = lambda: link_and_write(path)
    return ways


def main():
    args = attempt.arguments(__doc__)
    for volume, names in (("rw", PROJECT + WHERE_PRESENT), ("home", PROJECT + HOME)):
        for name in names:
            path = os.path.join(args.volumes, volume, name)
            if name in WHERE_PRESENT and not os.path.isdir(path):
                continue
            saw, through = set(), []
            for way, call in attack(path, os.path.lexists(path)).items():
                with Kept(path):
                    outcome = attempt.in_child(call)
                if outcome.error is not None and (outcome.error in attempt.REFUSALS or outcome.error in WALLS):
                    saw.add(attempt.errno_name(outcome.error))
                elif way == "symlink over" and outcome.error in (errno.EISDIR, errno.ENOTDIR):
                    continue
                else:
                    through.append(f"{way}: {attempt.errno_name(outcome.error) if outcome.error else 'allowed'}")
            attempt.report(f"{volume}/{name}", not through, "; ".join(through) or ", ".join(sorted(saw)))


main()
