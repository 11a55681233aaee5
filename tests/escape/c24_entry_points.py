"""Case 24: the i386 and x32 entry points, where system calls have other numbers.

Attempted: getpid by `int 0x80` from machine code in an executable page; getpid and unshare by their x32 numbers.
Contained: no process id is returned; the child may be killed.
Harmless: getpid changes nothing, and the namespace is that of a child that ends at once.
"""

import ctypes
import errno
import mmap
import os
import platform
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import attempt

X32_BIT = 0x40000000
# mov eax, 20; int 0x80; movsxd rax, eax; ret
GETPID_I386 = bytes.fromhex("b814000000" "cd80" "4863c0" "c3")


def getpid_by_int80():
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(GETPID_I386)
    call = ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
    result = call()
    if result < 0:
        raise OSError(-result, "refused")
    return "the right pid" if result == os.getpid() else f"{result}, not the pid"


def getpid_by_x32():
    return "the right pid" if attempt.syscall(X32_BIT | 39) == os.getpid() else "not the pid"


def main():
    attempt.arguments(__doc__)
    i386, x32, unshare = "getpid by int 0x80", "getpid by x32", "new user namespace by x32"
    if platform.machine() != "x86_64":
        for name in (i386, x32, unshare):
            attempt.unsupported(name, f"{platform.machine()} has no such entry point")
        return
    outcome = attempt.in_child(getpid_by_int80)
    if outcome.value:
        attempt.report(i386, False, outcome.value)
    elif not attempt.SANDBOXED:
        attempt.unsupported(i386, "this kernel has no i386 entry point")
    else:
        attempt.report(i386, True, outcome.killed_by or attempt.errno_name(outcome.error))
    absent = {errno.ENOSYS: "this kernel has no x32 ABI"}
    attempt.probe(x32, getpid_by_x32, absent=absent)
    attempt.probe(unshare, lambda: attempt.syscall(X32_BIT | 272, attempt.CLONE_NEWUSER), absent=absent)


main()
