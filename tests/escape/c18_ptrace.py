"""Case 18: access to other processes: a sibling, the init, and a process of the host.

Attempted: ptrace, process_vm_readv and process_vm_writev, pidfd_getfd, /proc/PID/mem.
Contained: refused; a process of the host (`--host-pid`) does not exist in the sandbox.
Harmless: the sibling is a child that only sleeps; the addresses (EFAULT) and the descriptor (EBADF) do not exist; the
init of a bare run is a child of the script.
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
    # PTRACE_SEIZE does not stop the target, and ends with this child.
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


def attack(target, pid, also=()):
    attempt.probe(f"ptrace of {target}", lambda: seize(pid), also)
    attempt.probe(f"process_vm_readv of {target}", lambda: move_memory("process_vm_readv", pid), also)
    attempt.probe(f"process_vm_writev of {target}", lambda: move_memory("process_vm_writev", pid), also)
    attempt.probe(f"pidfd_getfd of {target}", lambda: steal_descriptor(pid), also)
    attempt.probe(f"/proc/PID/mem of {target} for writing", lambda: open_memory(pid, os.O_WRONLY), (errno.EROFS, *also))


def main():
    args = attempt.arguments(__doc__, host_pid=True)
    with attempt.sleeper() as sibling:
        attack("a sibling", sibling)
    with attempt.init() as init:
        attack("the init", init)
        attempt.probe("/proc/PID/mem of the init for reading", lambda: open_memory(init, os.O_RDONLY))
    gone = (errno.ESRCH, errno.ENOENT)
    attack("a process of the host", args.host_pid, gone)
    attempt.probe(
        "/proc/PID/mem of a process of the host for reading", lambda: open_memory(args.host_pid, os.O_RDONLY), gone
    )
    attempt.probe("asking to be traced", lambda: attempt.syscall("ptrace", PTRACE_TRACEME, 0, 0, 0))


main()
