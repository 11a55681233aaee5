"""Case 22: calls that change the machine: modules, kexec, reboot, swap, the clock, accounting, the kernel log.

Attempted: each with invalid arguments, which the kernel examines only if the caller has the permission.
Contained: refused with EPERM or ENOSYS.
Harmless: no call can take effect: the magic number of reboot is wrong, modules and files do not exist, settimeofday
sets neither time nor zone, the other clock values are out of range; a bare run sets the host name in a new UTS
namespace.
"""

import errno
import os
import struct
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import attempt

ADJ_TICK = 0x4000
SYSLOG_READ_ALL = 3


def adjtimex():
    # struct timex, 208 bytes; a tick of 0 is out of range
    attempt.syscall("adjtimex", struct.pack("I204x", ADJ_TICK))


def set_host_name():
    attempt.unshare_bare(attempt.CLONE_NEWUTS)
    attempt.syscall("sethostname", b"escape", 6)


def main():
    attempt.arguments(__doc__)
    call = attempt.syscall
    no_modules = {errno.ENOSYS: "this kernel has no loadable modules"}
    no_kexec = {errno.ENOSYS: "this kernel has no kexec"}
    attempt.probe("init_module", lambda: call("init_module", 0, 0, 0), absent=no_modules)
    attempt.probe("finit_module", lambda: call("finit_module", -1, b"", 0), absent=no_modules)
    attempt.probe("delete_module", lambda: call("delete_module", b"escape_no_such", os.O_NONBLOCK), absent=no_modules)
    attempt.probe("kexec_load", lambda: call("kexec_load", 0, 0, 0, 0xFFFFFFFF), absent=no_kexec)
    attempt.probe("kexec_file_load", lambda: call("kexec_file_load", -1, -1, 0, 0, 0xFFFF), absent=no_kexec)
    attempt.probe("reboot", lambda: call("reboot", 0, 0, 0, 0))
    no_swap = {errno.ENOSYS: "this kernel has no swap"}
    attempt.probe("swapon", lambda: call("swapon", b"/no/such/swap", 0), absent=no_swap)
    attempt.probe("swapoff", lambda: call("swapoff", b"/no/such/swap"), absent=no_swap)
    attempt.probe("settimeofday", lambda: call("settimeofday", 0, 0))
    attempt.probe("clock_settime", lambda: call("clock_settime", 0, struct.pack("qq", 0, -1)))
    attempt.probe("adjtimex", adjtimex)
    attempt.probe(
        "acct",
        lambda: call("acct", b"/no/such/file"),
        absent={errno.ENOSYS: "this kernel has no process accounting"},
    )
    attempt.probe("kernel log", lambda: call("syslog", SYSLOG_READ_ALL, bytes(4096), 4096))
    attempt.probe("sethostname", set_host_name)


main()
