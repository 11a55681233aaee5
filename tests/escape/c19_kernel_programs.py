"""Case 19: bpf, perf_event_open, userfaultfd.

Attempted: an eBPF map and a program, a software performance event of the process itself, a userfaultfd by system call
and by device.
Contained: each is refused.
Harmless: the map has one entry, the program returns 0 and is attached to nothing; all end with the child.
"""

import ctypes
import errno
import os
import struct
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import attempt

BPF_MAP_CREATE, BPF_PROG_LOAD = 0, 5
UFFD_USER_MODE_ONLY = 1


def bpf_map():
    # array map: type, key size, value size, entries
    attempt.syscall("bpf", BPF_MAP_CREATE, struct.pack("4I56x", 2, 4, 4, 1), 72)


def bpf_program():
    code = ctypes.create_string_buffer(bytes.fromhex("b700000000000000" "9500000000000000"), 16)  # r0 = 0; exit
    licence = ctypes.create_string_buffer(b"GPL")
    socket_filter = struct.pack("IIQQ48x", 1, 2, ctypes.addressof(code), ctypes.addressof(licence))
    attempt.syscall("bpf", BPF_PROG_LOAD, socket_filter, 72)


def perf_event():
    # type software, size, cpu clock; disabled, without kernel and hypervisor: allowed for ordinary users
    attributes = struct.pack("IIQQQQQ16x", 1, 64, 0, 0, 0, 0, 1 | 1 << 5 | 1 << 6)
    attempt.syscall("perf_event_open", attributes, 0, -1, -1, 0)


def main():
    attempt.arguments(__doc__)
    attempt.probe("bpf map", bpf_map, absent={errno.ENOSYS: "this kernel has no bpf"})
    attempt.probe("bpf program", bpf_program, absent={errno.ENOSYS: "this kernel has no bpf"})
    attempt.probe("perf_event_open", perf_event, absent={errno.ENOSYS: "this kernel has no perf events"})
    no_uffd = {errno.ENOSYS: "this kernel has no userfaultfd", errno.ENOENT: "this host has no /dev/userfaultfd"}
    attempt.probe("userfaultfd", lambda: attempt.syscall("userfaultfd", 0), absent=no_uffd)
    attempt.probe(
        "userfaultfd in user mode only", lambda: attempt.syscall("userfaultfd", UFFD_USER_MODE_ONLY), absent=no_uffd
    )
    attempt.probe(
        "/dev/userfaultfd", lambda: attempt.open_and_close("/dev/userfaultfd", os.O_RDWR), [errno.ENOENT], no_uffd
    )


main()
