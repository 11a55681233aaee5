"""Case 5: using up the inodes with empty files, directories, symlinks, hard links and FIFOs.

Attempted: to create twice `--workspace-inodes` of each.
Contained: the attempt ends with ENOSPC at no more than the limit, and the process can create more after it has removed
them.
Harmless: at most 20,000 empty entries in a directory that is removed at the end.
"""

import os
import shutil
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import attempt


def file(path):
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))


def hard_link(path):
    origin = os.path.join(os.path.dirname(path), "0")
    file(path) if path == origin else os.link(origin, path)


KINDS = {
    "files": file,
    "directories": os.mkdir,
    "symlinks": lambda path: os.symlink("nowhere", path),
    "hard links": hard_link,
    "FIFOs": os.mkfifo,
}


def fill(directory, make, wanted):
    os.mkdir(directory)
    made, saw = 0, "no refusal"
    try:
        while made < wanted:
            make(os.path.join(directory, str(made)))
            made += 1
    except OSError as error:
        saw = attempt.errno_name(error.errno)
    shutil.rmtree(directory)
    return made, saw


def main():
    args = attempt.arguments(__doc__)
    limit, wanted = args.workspace_inodes, min(2 * args.workspace_inodes, 20_000)
    # A bare run uses memory, to spare the disk of the host.
    with attempt.scratch(None if attempt.SANDBOXED else "/dev/shm") as here:
        for name, make in KINDS.items():
            made, saw = fill(os.path.join(here, "fill"), make, wanted)
            again = fill(os.path.join(here, "fill"), make, 10)[0] == 10
            after = "made more afterwards" if again else "could make none afterwards"
            attempt.report(name, saw == "ENOSPC" and made <= limit and again, f"{saw} after {made}, {after}")


main()
