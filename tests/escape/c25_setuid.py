"""Case 25: privileges from setuid programs and file capabilities, or privileges that were not dropped.

Attempted: to run a setuid-root program of the system with its privileges; to become root; to drop groups; to give a
file capabilities. Also checked: mounts that honour setuid, no_new_privs, the capability sets.
Contained: the program runs with the rights of the caller (then the loader prints AT_SECURE 0, which it does not print in
a privileged program), the calls are refused, the mounts are nosuid, the sets are empty.
Harmless: the program prints its --help, in a bare run as uid 65534; the file is a temporary copy.
"""

import errno
import os
import stat
import struct
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import attempt

NOBODY = 65534
DIRECTORIES = ["/", "/usr", os.getcwd(), "/tmp", "/dev/shm"]
PROGRAMS = ["su", "mount", "umount", "passwd", "chsh", "newgrp", "newuidmap", "sudo", "fusermount3"]
SETS = ("CapInh", "CapPrm", "CapEff", "CapAmb")


def setuid_program():
    for name in PROGRAMS:
        path = f"/usr/bin/{name}"
        if os.path.exists(path) and os.stat(path).st_mode & stat.S_ISUID:
            return path
    return None


def run_privileged(path):
    """Returns true if the program ran with more rights than its caller."""
    if not attempt.SANDBOXED:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    done = subprocess.run(
        [path, "--help"], env={"LD_SHOW_AUXV": "1"}, stdin=subprocess.DEVNULL, capture_output=True
    )
    return b"AT_SECURE:" not in done.stdout


def setuid_attempt():
    name, path = "setuid program of the system", setuid_program()
    if path is None:
        attempt.unsupported(name, f"none of {', '.join(PROGRAMS)} is setuid here")
        return
    outcome = attempt.in_child(lambda: run_privileged(path))
    if outcome.error:
        attempt.report(name, outcome.error in attempt.REFUSALS, f"{path}: {attempt.errno_name(outcome.error)}")
    else:
        how = "privileged" if outcome.value else "without privilege"
        attempt.report(name, outcome.value is False, f"{path} ran {how}")


def give_capabilities():
    with attempt.scratch() as here:
        copy = os.path.join(here, "program")
        with open(copy, "wb") as file:
            file.write(b"#!/bin/true\n")
        # version 2, effective; permitted: all of the lower word
        os.setxattr(copy, "security.capability", struct.pack("<5I", 0x02000001, 0xFFFFFFFF, 0, 0, 0))


def capability_sets():
    with open("/proc/self/status") as status:
        fields = dict(line.split(":\t", 1) for line in status)
    return {name: int(fields[name], 16) for name in (*SETS, "CapBnd")}


def main():
    attempt.arguments(__doc__)
    setuid_attempt()
    attempt.probe("becoming root", lambda: os.setresuid(0, 0, 0), also=[errno.EINVAL])
    attempt.probe("dropping groups", lambda: os.setgroups([]))
    attempt.probe(
        "giving a file capabilities",
        give_capabilities,
        also=[errno.EOPNOTSUPP],
        absent={errno.EOPNOTSUPP: "this file system has no file capabilities"},
    )
    honoured = [path for path in DIRECTORIES if not os.statvfs(path).f_flag & os.ST_NOSUID]
    attempt.report("mounts that honour setuid", not honoured, ", ".join(honoured) or "none")
    no_new_privs = attempt.libc.prctl(attempt.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1
    attempt.report("gaining privileges at exec", no_new_privs, f"no_new_privs {'on' if no_new_privs else 'off'}")
    held = capability_sets()
    some = {name: f"{held[name]:x}" for name in SETS if held[name]}
    attempt.report("capabilities held", not some, some or "none")
    attempt.report("capabilities in the bounding set", held["CapBnd"] == 0, f"{held['CapBnd']:x}")


main()
