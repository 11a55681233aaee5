"""Case 26: personality, modify_ldt and port access.

Attempted: to disable address randomisation, to make readable pages executable, to write an entry of the local
descriptor table, to get access to I/O ports.
Contained: each call is refused.
Harmless: everything belongs to a child that ends at once; no port is used.
"""

import errno
import os
import platform
import struct
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import attempt

ADDR_NO_RANDOMIZE, READ_IMPLIES_EXEC = 0x0040000, 0x0400000


def modify_ldt():
    # struct user_desc: entry 0, base 0, limit, flags: 32 bit, limit in pages
    result = attempt.syscall("modify_ldt", 1, struct.pack("4I", 0, 0, 0xFFFFF, 0b010001), 16)
    # The kernel returns the error as an unsigned int, which the C library does not recognise.
    if result > 0xFFFFF000:
        raise OSError(0x100000000 - result, "modify_ldt")


def main():
    attempt.arguments(__doc__)
    personalities = {"without address randomisation": ADDR_NO_RANDOMIZE, "with executable reads": READ_IMPLIES_EXEC}
    for name, flag in personalities.items():
        attempt.probe(f"personality {name}", lambda flag=flag: attempt.syscall("personality", flag))
    x86_only = f"this {platform.machine()} kernel has no such call"
    attempt.probe("modify_ldt", modify_ldt, absent={errno.ENOSYS: x86_only})
    attempt.probe("iopl", lambda: attempt.syscall("iopl", 3), absent={errno.ENOSYS: x86_only})
    attempt.probe("ioperm", lambda: attempt.syscall("ioperm", 0x80, 1, 1), absent={errno.ENOSYS: x86_only})


main()
