"""Case 18: reaching into other processes: a sibling, the init, and a process of the host.

Attempted: ptrace, process_vm_readv and process_vm_writev, pidfd_getfd, /proc/PID/mem.
Contained: refused; a process of the host (`--host-pid`) does not even exist.
Harmless: the sibling is the script's own and only sleeps; the memory named does not exist (EFAULT) and so does the
descriptor (EBADF); outside, a stand-in that the script forked takes the place of the init.
"""

import ctypes
import errno
import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import attempt

PTRACE_TRACEME, PTRACE_SEIZE = 0, 0x4206


class IoVec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


def seize(pid):
    # seizing does not stop the target, and ends with this child
    attempt.syscall("ptrace", PTRACE_SEIZE, pid, 0, 0)


def move_memory(call, pid):
    buffer = ctypes.create_string_buffer(8)
    here = IoVec(ctypes.addressof(buffer), 8)
    nowhere = IoVec(0x10, 8)
    attempt.syscall(call, pid, here, 1, nowhere, 1, 0)


def steal_descriptor(pid):
    attempt.syscall("pidfd_getfd", attempt.syscall("pidfd_open", pid, 0), 1 << 20, 0)


def open_memory(pid, flags):
    attempt.open_and_close(f"/proc/{pid}/mem", flags)


def reach(whom, pid, also=()):
    attempt.probe(f"ptrace of {whom}", lambda: seize(pid), also)
    attempt.probe(f"process_vm_readv of {whom}", lambda: move_memory("process_vm_readv", pid), also)
    attempt.probe(f"process_vm_writev of {whom}", lambda: move_memory("process_vm_writev", pid), also)
    attempt.probe(f"pidfd_getfd of {whom}", lambda: steal_descriptor(pid), also)
    attempt.probe(f"/proc/PID/mem of {whom} for writing", lambda: open_memory(pid, os.O_WRONLY), (errno.EROFS, *also))


def main():
    args = attempt.arguments(__doc__, host_pid=True)
    with attempt.sleeper() as sibling:
        reach("a sibling", sibling)
    with attempt.init() as init:
        reach("the init", init)
        attempt.probe("/proc/PID/mem of the init for reading", lambda: open_memory(init, os.O_RDONLY))
    gone = (errno.ESRCH, errno.ENOENT)
    reach("a process of the host", args.host_pid, gone)
    attempt.probe(
        "/proc/PID/mem of a process of the host for reading", lambda: open_memory(args.host_pid, os.O_RDONLY), gone
    )
    attempt.probe("asking to be traced", lambda: attempt.syscall("ptrace", PTRACE_TRACEME, 0, 0, 0))


main()
