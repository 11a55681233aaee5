"""Case 68: access through the supplementary groups of the user who started the sandbox.

Attempted: to read the key of `--key`, and the file of `--group-file`, which only the members of one group may read;
to have a supplementary group at all.
Contained: the key does not exist, the file is refused, the list of groups is empty.
Harmless: the files are made for this case and only read.
"""

import errno
import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import attempt


def read(path):
    with open(path, "rb") as file:
        file.read(64)


def main():
    args = attempt.arguments(__doc__, key=True)
    attempt.probe("private key in /etc/ssl", lambda: read(args.key), [errno.ENOENT])
    if args.group_file:
        attempt.probe("file of a group", lambda: read(args.group_file))
        groups = [group for group in os.getgroups() if group != os.getgid()]
        attempt.report("supplementary groups", not groups, f"groups {groups}")


main()
