"""Case 3: locked memory and swap.

Attempted: to lock 64 MiB into memory with each system call; to exceed `--memory` with the help of swap.
Contained: locking is refused; on a host with swap no more than 1.5 times the limit is held.
Harmless: 64 MiB in a child that ends at once; the swap attempt is bounded as in case 2.
"""

import ctypes
import errno
import mmap
import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import attempt
import c02_memory_bomb

SIZE = 64 * attempt.MIB
MAP_LOCKED = 0x2000
MCL_CURRENT, MCL_FUTURE = 1, 2


def mapped():
    block = mmap.mmap(-1, SIZE)
    return block, ctypes.addressof(ctypes.c_char.from_buffer(block))


def mlock(call, *flags):
    block, address = mapped()
    attempt.syscall(call, address, SIZE, *flags)


def mlockall():
    mapping = mapped()
    attempt.syscall("mlockall", MCL_CURRENT | MCL_FUTURE)
    del mapping


def swap_total():
    # sysinfo(2) works in sandboxes too: uptime, three loads, total and free RAM, shared, buffers, total swap
    info = (ctypes.c_ulong * 64)()
    attempt.libc.sysinfo(info)
    return info[8]


def main():
    args = attempt.arguments(__doc__)
    over_limit = (errno.ENOMEM, errno.EAGAIN)
    attempt.probe("mlock of 64 MiB", lambda: mlock("mlock"), also=over_limit)
    attempt.probe("mlock2 of 64 MiB on fault", lambda: mlock("mlock2", 1), also=over_limit)
    attempt.probe("mlockall with 64 MiB mapped", mlockall, also=over_limit)
    attempt.probe(
        "mmap of 64 MiB locked",
        lambda: mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_LOCKED).close(),
        also=over_limit,
    )
    name = "memory over the limit by way of swap"
    if swap_total() == 0:
        attempt.unsupported(name, "this host has no swap")
        return
    held, saw = c02_memory_bomb.bomb(c02_memory_bomb.anonymous, True, args.memory)
    attempt.report(name, held <= 1.5 * args.memory, f"{saw}, {held // attempt.MIB} MiB at most")


main()
