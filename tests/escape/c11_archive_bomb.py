"""Case 11: small archives with huge content.

Attempted: to unpack a zip of 512 MiB and a tar.gz of 256 MiB of zeros, and a tar of 6,000 empty files, in the
workspace.
Contained: unpacking ends with ENOSPC within `--workspace` and `--workspace-inodes`, and the process can write
afterwards.
Harmless: at most 512 MiB and 6,000 files, in a directory that is removed at the end.
"""

import io
import os
import shutil
import sys
import tarfile
import zipfile

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import attempt

MEMBER_SIZE = 64 * attempt.MIB
FILES = 6_000


class Zeros(io.RawIOBase):
    """A file of MEMBER_SIZE zeros."""

    left = MEMBER_SIZE

    def read(self, count=-1):
        count = min(count if count >= 0 else self.left, self.left)
        self.left -= count
        return bytes(count)


def pack_zip(path):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for n in range(8):
            with archive.open(f"zeros-{n}", "w") as member:
                shutil.copyfileobj(Zeros(), member, attempt.MIB)


def pack_tar(path):
    with tarfile.open(path, "w:gz", compresslevel=1) as archive:
        for n in range(4):
            member = tarfile.TarInfo(f"zeros-{n}")
            member.size = MEMBER_SIZE
            archive.addfile(member, Zeros())


def pack_many(path):
    with tarfile.open(path, "w:gz", compresslevel=1) as archive:
        for n in range(FILES):
            archive.addfile(tarfile.TarInfo(f"file-{n}"))


def unpack_and_measure(archive, into):
    saw = "no refusal"
    try:
        shutil.unpack_archive(archive, into)
    except OSError as error:
        saw = attempt.errno_name(error.errno)
    unpacked = [os.stat(os.path.join(into, name)).st_blocks * 512 for name in os.listdir(into)]
    return len(unpacked), sum(unpacked), saw


def attack(name, pack, suffix, args):
    # A bare run uses memory, to spare the disk of the host.
    with attempt.scratch(None if attempt.SANDBOXED else "/dev/shm") as here:
        archive, into = os.path.join(here, f"bomb{suffix}"), os.path.join(here, "unpacked")
        pack(archive)
        os.mkdir(into)
        count, stored, saw = unpack_and_measure(archive, into)
        shutil.rmtree(into)
        with open(os.path.join(here, "again"), "w") as again:
            again.write("still writing")
    within = stored <= args.workspace and count <= args.workspace_inodes
    attempt.report(name, saw == "ENOSPC" and within, f"{saw} after {count} files, {stored // attempt.MIB} MiB")


def main():
    args = attempt.arguments(__doc__)
    attack("zip of 512 MiB of zeros", pack_zip, ".zip", args)
    attack("tar.gz of 256 MiB of zeros", pack_tar, ".tar.gz", args)
    attack("tar of 6000 files", pack_many, ".tar.gz", args)


main()
