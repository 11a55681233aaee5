"""Case 4: filling the disk with write, fallocate, sparse files that are written later, and in several directories.

Attempted: to store four times `--workspace`.
Contained: the attempt ends with ENOSPC (SIGBUS for a mapped file) at no more than 1.1 times the limit, and the process
can write again after it has removed the files.
Harmless: at most 1 GiB, in directories that are removed at the end.
"""

import mmap
import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import attempt

STEP = attempt.MIB


def write(file, offset):
    os.pwrite(file, b"\1" * STEP, offset)


def allocate(file, offset):
    os.posix_fallocate(file, offset, STEP)


def write_sparse(file, offset):
    if offset == 0:
        os.ftruncate(file, 1 << 40)
    write(file, offset)


def fill(directories, put, wanted):
    """Fills one file in each directory with `put`; returns the bytes stored and the last error."""
    files, stored, saw = [], 0, "no refusal"
    for directory in directories:
        path = os.path.join(directory, "fill")
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        files.append((file, path))
        try:
            for offset in range(0, wanted // len(directories), STEP):
                put(file, offset)
                stored += STEP
        except OSError as error:
            saw = attempt.errno_name(error.errno)
    for file, path in files:
        os.close(file)
        os.unlink(path)
    return stored, saw


def touch_mapping(directory, wanted):
    """Writes in a child through a mapping of a sparse file; a full file system raises SIGBUS."""
    path = os.path.join(directory, "fill")

    def touch():
        file = os.open(path, os.O_RDWR | os.O_CREAT)
        os.ftruncate(file, wanted)
        with mmap.mmap(file, wanted) as block:
            for start in range(0, wanted, STEP):
                block[start : start + STEP : mmap.PAGESIZE] = b"\1" * (STEP // mmap.PAGESIZE)

    outcome = attempt.in_child(touch)
    stored = os.stat(path).st_blocks * 512
    os.unlink(path)
    return stored, outcome.killed_by or (attempt.errno_name(outcome.error) if outcome.error else "no refusal")


def report(name, directory, limit, stored, saw):
    again = fill([directory], write, STEP) == (STEP, "no refusal")
    after = "wrote again afterwards" if again else "could not write afterwards"
    refused = saw in ("ENOSPC", "SIGBUS", "EFBIG", "EDQUOT", "SIGKILL")
    contained = refused and stored <= 1.1 * limit and again
    attempt.report(name, contained, f"{saw} after {stored // attempt.MIB} MiB, {after}")


def main():
    args = attempt.arguments(__doc__)
    limit, wanted = args.workspace, min(4 * args.workspace, 1 << 30)
    with attempt.scratch() as here, attempt.scratch("/tmp") as tmp, attempt.scratch("/dev/shm") as shm:
        for name, put in (
            ("write", write),
            ("fallocate", allocate),
            ("sparse file, then written", write_sparse),
        ):
            report(name, here, limit, *fill([here], put, wanted))
        report("sparse file, then written through a mapping", here, limit, *touch_mapping(here, wanted))
        everywhere = fill([here, tmp, shm], write, wanted)
        report("write spread over the workspace, /tmp and /dev/shm", here, limit, *everywhere)


main()
