"""Cases 41, 42 and 77: files that a program on the host would execute or read as configuration.

`--only project` tries git hooks, settings of editors and MCP clients, and start files of shells; `--only home` tries
keys, settings and start files of a home, links to them, and the directories above them.
Attempted, for every name: to write it or a file in it; to remove it; to replace it by a file, a directory or a symlink,
also with an exchange; to create a hard link and write to that; to set its time, by which ringfence recognises its
placeholders. For writable directories that contain protected names: to move or replace them.
Contained: each is refused. The harness also compares the volumes on the host before and after.
Harmless: the volumes belong to the harness, and each attempt of a bare run is undone.
"""

import errno
import os
import shutil
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import attempt

PROJECT = [".mcp.json", ".vscode", ".cursor", ".claude", ".gemini", ".codex", ".envrc", ".npmrc", "ringfence.toml"]
REPOSITORY = [".git/hooks", ".git/info", ".git/config"]
SHELLS = [".bashrc", ".bash_profile", ".profile", ".zshrc", ".zshenv", ".zprofile"]
HOME = [
    ".ssh", ".gitconfig", ".config/systemd", ".config/autostart", ".config/fish", ".config/gcloud", ".config/pip",
    ".claude.json", ".aws", ".kube", ".docker", ".local/bin", ".local/lib", ".netrc", ".pypirc", "bin",
    ".bash_aliases", "dotfiles/aliases",
]  # fmt: skip
WHERE_PRESENT = [".venv", "venv"]
# Directories that are writable and must not be moved.
PARENTS = [".git", ".config", ".local", "dotfiles"]
IN_DIRECTORIES = {
    ".git": "hooks/pre-commit",
    ".vscode": "tasks.json",
    ".cursor": "mcp.json",
    ".claude": "settings.json",
    ".gemini": "settings.json",
    ".codex": "config.toml",
    ".venv": "bin/activate",
    "venv": "bin/activate",
}
BLOCKED = [errno.EROFS, errno.EXDEV, errno.EBUSY]
RENAME_EXCHANGE, AT_FDCWD = 2, -100


def remove(path):
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)


class Restored:
    """Restores a path at the end, in bare runs."""

    def __init__(self, path):
        self.path, self.copy = path, path + "-copy"

    def __enter__(self):
        if not attempt.SANDBOXED and os.path.lexists(self.path):
            if os.path.isdir(self.path) and not os.path.islink(self.path):
                shutil.copytree(self.path, self.copy, symlinks=True)
            else:
                shutil.copy2(self.path, self.copy, follow_symlinks=False)

    def __exit__(self, *_):
        if not attempt.SANDBOXED:
            remove(self.path)
            if os.path.lexists(self.copy):
                os.rename(self.copy, self.path)


def write(path):
    """Appends to the file, or to the file in the directory that a program would read."""
    inner = IN_DIRECTORIES.get(os.path.basename(path), "planted" if os.path.isdir(path) else None)
    if inner:
        path = os.path.join(path, inner)
        os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "a") as file:
        file.write("planted\n")


def delete(path):
    if os.path.isdir(path):
        os.rename(path, path + "-away")
        shutil.rmtree(path + "-away")
    else:
        os.unlink(path)


def beside(path):
    return os.path.join(os.path.dirname(path), "planted")


def replace(path, make):
    """Creates an entry beside the path, and renames it over the path."""
    make(beside(path))
    try:
        os.rename(beside(path), path)
    finally:
        remove(beside(path))


def make_like(path):
    """Creates an entry beside the path that can be renamed over it."""
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
    """Creates a second name of the protected file, with which it could be written."""
    inner = os.path.join(path, "config") if os.path.isdir(path) else path
    os.link(inner, beside(path))
    remove(beside(path))


def attack(path, present):
    """Returns the attacks on a protected name."""
    like = os.mkdir if os.path.isdir(path) else write_file
    ways = {
        "write": lambda: write(path),
        "rename over": lambda: replace(path, like),
        "symlink over": lambda: replace(path, lambda p: os.symlink("/nowhere", p)),
    }
    if present:
        ways |= {
            "remove": lambda: delete(path),
            "exchange": lambda: exchange(path),
            "time": lambda: os.utime(path, (0, 0)),
            "mode": lambda: os.chmod(path, 0o777),
        }
        if os.path.isfile(path) or os.path.exists(os.path.join(path, "config")):
            ways["hard link"] = lambda: link_and_write(path)
    return ways


def move(path):
    """Returns the attacks on a writable directory that contains protected names."""
    return {
        "move away": lambda: os.rename(path, path + "-away"),
        "exchange": lambda: exchange(path),
        "rename over": lambda: replace(path, os.mkdir),
    }


def try_all(path, name, ways):
    """Makes all attacks, and reports those that succeeded."""
    saw, succeeded = set(), []
    for way, call in ways.items():
        with Restored(path):
            outcome = attempt.in_child(call)
        if not attempt.SANDBOXED:
            remove(path + "-away")
        if outcome.error is not None and (outcome.error in attempt.REFUSALS or outcome.error in BLOCKED):
            saw.add(attempt.errno_name(outcome.error))
        elif way == "symlink over" and outcome.error in (errno.EISDIR, errno.ENOTDIR):
            continue
        elif way == "rename over" and outcome.error == errno.ENOTEMPTY:
            continue
        else:
            succeeded.append(f"{way}: {attempt.errno_name(outcome.error) if outcome.error else 'allowed'}")
    attempt.report(name, not succeeded, "; ".join(succeeded) or ", ".join(sorted(saw)))


def main():
    args = attempt.arguments(__doc__, only=["project", "home"], one_only=True)
    names_of = {
        "project": (("rw", [".git", *PROJECT, *REPOSITORY, *WHERE_PRESENT]), ("home", [".git", *PROJECT, *SHELLS])),
        "home": (("home", [*HOME, *PARENTS]),),
    }
    for volume, names in names_of[args.only]:
        for name in names:
            path = os.path.join(args.volumes, volume, name)
            present = os.path.lexists(path)
            if not present and name in REPOSITORY + WHERE_PRESENT:
                continue
            if present and name in PARENTS and os.listdir(path):
                try_all(path, f"{volume}/{name}", move(path))
            else:
                try_all(path, f"{volume}/{name}", attack(path, present))


main()
