"""Case 20: io_uring, and sockets that it creates without a call of socket().

Attempted: io_uring_setup; io_uring_enter and io_uring_register with an invalid descriptor; a raw socket through a ring.
Contained: each call is refused (EBADF would mean that the kernel has examined the descriptor).
Harmless: a ring of one entry and a socket that sends nothing, both gone with the child.
"""

import ctypes
import errno
import mmap
import os
import socket
import struct
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import attempt

OFF_SQ_RING, OFF_CQ_RING, OFF_SQES = 0, 0x8000000, 0x10000000
IORING_OP_SOCKET = 45
IORING_ENTER_GETEVENTS = 1


def setup():
    parameters = ctypes.create_string_buffer(120)
    return attempt.syscall("io_uring_setup", 1, parameters), parameters.raw


def raw_socket_by_ring():
    ring, parameters = setup()
    sq_tail, sq_array = struct.unpack_from("I", parameters, 44)[0], struct.unpack_from("I", parameters, 64)[0]
    cqes = struct.unpack_from("I", parameters, 100)[0]
    submissions = mmap.mmap(ring, 4096, flags=mmap.MAP_SHARED, offset=OFF_SQ_RING)
    completions = mmap.mmap(ring, 4096, flags=mmap.MAP_SHARED, offset=OFF_CQ_RING)
    entries = mmap.mmap(ring, 4096, flags=mmap.MAP_SHARED, offset=OFF_SQES)
    # opcode, flags, priority, domain, type, address, protocol, flags
    struct.pack_into(
        "BBHiQQII", entries, 0,
        IORING_OP_SOCKET, 0, 0, socket.AF_INET, socket.SOCK_RAW, 0, socket.IPPROTO_ICMP, 0,
    )  # fmt: skip
    struct.pack_into("I", submissions, sq_array, 0)
    struct.pack_into("I", submissions, sq_tail, 1)
    attempt.syscall("io_uring_enter", ring, 1, 1, IORING_ENTER_GETEVENTS, 0, 0)
    result = struct.unpack_from("i", completions, cqes + 8)[0]
    if result < 0:
        return f"the ring works, its socket failed with {attempt.errno_name(-result)}"
    return "the ring created a raw socket"


def main():
    attempt.arguments(__doc__)
    absent = {errno.ENOSYS: "this kernel has no io_uring"}
    attempt.probe("io_uring_setup", lambda: setup()[0], absent=absent)
    attempt.probe("io_uring_enter", lambda: attempt.syscall("io_uring_enter", -1, 0, 0, 0, 0, 0), absent=absent)
    attempt.probe("io_uring_register", lambda: attempt.syscall("io_uring_register", -1, 0, 0, 0), absent=absent)
    attempt.probe("raw socket through io_uring", raw_socket_by_ring, absent=absent)


main()
