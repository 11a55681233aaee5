"""Case 64: filters that use the memory for compiled BPF programs, which has one limit for the whole host.

Attempted: classic filters on sockets and on groups of sockets, further seccomp filters by `seccomp` and `prctl`, 64 of
each.
Contained: refused.
Harmless: the filters accept everything, are a few instructions long, and end with the child.
"""

import ctypes
import errno
import os
import socket
import struct
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import attempt

COUNT = 64
SO_ATTACH_FILTER, SO_ATTACH_BPF, SO_ATTACH_REUSEPORT_CBPF = 26, 50, 51
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 22, 38, 2
SECCOMP_SET_MODE_FILTER, SECCOMP_ALLOW = 1, 0x7FFF0000
SECCOMP, SETSOCKOPT = (317, 54) if os.uname().machine == "x86_64" else (277, 208)


def program(result):
    """Returns a `struct sock_fprog` of one instruction, and the buffer that it points to."""
    code = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, result), 8)
    return struct.pack("HxxxxxxQ", 1, ctypes.addressof(code)), code


def attach(kind, option, level=socket.SOL_SOCKET):
    filter_, code = program(0)
    sockets = []
    for _ in range(COUNT):
        sockets.append(socket.socket(*kind))
        if option == SO_ATTACH_REUSEPORT_CBPF:
            sockets[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        attempt.syscall(SETSOCKOPT, sockets[-1].fileno(), level, option, filter_, 16)
    return f"{len(sockets)} filters attached"


def attach_program():
    """Names no program: EBADF means that the kernel has examined the descriptor."""
    with socket.socket() as end:
        end.setsockopt(socket.SOL_SOCKET, SO_ATTACH_BPF, struct.pack("i", -1))


def by_seccomp():
    attempt.libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    filter_, code = program(SECCOMP_ALLOW)
    for _ in range(COUNT):
        attempt.syscall(SECCOMP, SECCOMP_SET_MODE_FILTER, 0, filter_)
    return f"{COUNT} filters installed"


def by_prctl():
    attempt.libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    filter_, code = program(SECCOMP_ALLOW)
    for _ in range(COUNT):
        if attempt.libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, filter_, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl")
    return f"{COUNT} filters installed"


def main():
    attempt.arguments(__doc__)
    tcp, udp = (socket.AF_INET, socket.SOCK_STREAM), (socket.AF_INET, socket.SOCK_DGRAM)
    unix = (socket.AF_UNIX, socket.SOCK_DGRAM)
    attempt.probe("filter on TCP sockets", lambda: attach(tcp, SO_ATTACH_FILTER))
    attempt.probe("filter on UDP sockets", lambda: attach(udp, SO_ATTACH_FILTER))
    attempt.probe("filter on Unix sockets", lambda: attach(unix, SO_ATTACH_FILTER))
    attempt.probe(
        "filter with bits above the level", lambda: attach(tcp, SO_ATTACH_FILTER, socket.SOL_SOCKET | 1 << 32)
    )
    attempt.probe("filter on a group of sockets", lambda: attach(udp, SO_ATTACH_REUSEPORT_CBPF))
    attempt.probe("eBPF program on a socket", attach_program)
    attempt.probe("filters by seccomp", by_seccomp)
    attempt.probe("filters by prctl", by_prctl, also=[errno.EINVAL])


main()
