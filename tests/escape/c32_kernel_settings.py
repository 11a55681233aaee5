"""Case 32: kernel settings that run programs or stop the machine: core_pattern, sysrq, uevent_helper and others.

Attempted: to open each for writing.
Contained: refused, or the file does not exist.
Harmless: nothing is ever written; opening these files has no effect.
"""

import errno
import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import attempt

SETTINGS = [
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/kernel/modprobe",
    "/proc/sys/kernel/hotplug",
    "/proc/sys/kernel/poweroff_cmd",
    "/proc/sys/kernel/hostname",
    "/proc/sys/kernel/panic",
    "/proc/sys/kernel/usermodehelper/bset",
    "/proc/sys/vm/overcommit_memory",
    "/proc/sys/vm/drop_caches",
    "/proc/sys/net/ipv4/ip_forward",
    "/proc/sys/fs/binfmt_misc/register",
    "/proc/sysrq-trigger",
    "/proc/irq/default_smp_affinity",
    "/proc/mtrr",
    "/sys/kernel/uevent_helper",
    "/sys/power/state",
    "/sys/kernel/mm/transparent_hugepage/enabled",
    "/sys/kernel/security/apparmor/.load",
]


def main():
    attempt.arguments(__doc__)
    for path in SETTINGS:
        attempt.probe(
            path,
            lambda path=path: attempt.open_and_close(path, os.O_WRONLY),
            [errno.EROFS, errno.ENOENT],
            {errno.ENOENT: "this kernel has no such file"},
        )


main()
