"""Runs a command as on a host that lacks a protection, for case 62: `without.py landlock|seccomp|namespaces COMMAND…`.

A seccomp filter makes the system calls fail as in a kernel that was built without them. Only this process and its
children have the filter.
"""

import ctypes
import errno
import os
import platform
import struct
import sys

PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 22, 38, 2
CLONE_NEWUSER = 0x10000000
RETURN_ALLOW, RETURN_ERRNO = 0x7FFF0000, 0x00050000
LOAD_NUMBER, LOAD_FIRST_ARGUMENT = (0x20, 0, 0, 0), (0x20, 0, 0, 16)

X86 = platform.machine() == "x86_64"
PRCTL, SECCOMP, CLONE, CLONE3, UNSHARE = (157, 317, 56, 435, 272) if X86 else (167, 277, 220, 435, 97)
LANDLOCK_CREATE_RULESET = 444


def refuse(number, error):
    return [LOAD_NUMBER, (0x15, 0, 1, number), return_error(error)]


def refuse_first_argument(number, value, error):
    """Refuses the call where its first argument is `value`."""
    return [LOAD_NUMBER, (0x15, 0, 3, number), LOAD_FIRST_ARGUMENT, (0x15, 0, 1, value), return_error(error)]


def refuse_flag(number, flag, error):
    """Refuses the call where its first argument has `flag`."""
    return [LOAD_NUMBER, (0x15, 0, 3, number), LOAD_FIRST_ARGUMENT, (0x45, 0, 1, flag), return_error(error)]


def return_error(error):
    return (0x06, 0, 0, RETURN_ERRNO | error)


WITHOUT = {
    "landlock": refuse(LANDLOCK_CREATE_RULESET, errno.ENOSYS),
    "seccomp": refuse(SECCOMP, errno.ENOSYS) + refuse_first_argument(PRCTL, PR_SET_SECCOMP, errno.EINVAL),
    "namespaces": refuse_flag(CLONE, CLONE_NEWUSER, errno.EPERM)
    + refuse_flag(UNSHARE, CLONE_NEWUSER, errno.EPERM)
    # A filter cannot read its flags, which are in memory.
    + refuse(CLONE3, errno.EPERM),
}


def install(instructions):
    code = b"".join(struct.pack("HBBI", *each) for each in [*instructions, (0x06, 0, 0, RETURN_ALLOW)])
    buffer = ctypes.create_string_buffer(code, len(code))
    # struct sock_fprog: the number of instructions, and their address
    program = struct.pack("HxxxxxxQ", len(code) // 8, ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    # Root does not need it, and setuid helpers would not work with it.
    if os.geteuid() != 0:
        libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program, 0, 0):
        sys.exit(f"the filter was refused: {os.strerror(ctypes.get_errno())}")


def main():
    install(WITHOUT[sys.argv[1]])
    os.execv(sys.argv[2], sys.argv[2:])


main()
