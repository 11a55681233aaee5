"""Case 29: /proc as a way out: roots, other processes, the secrets of the init, the memory of the kernel.

Attempted: to reach `--host-file` through /proc/PID/root and /proc/self/cwd; to find `--host-pid`; to read the
environment, memory map, descriptors and root of the init; to open kcore and other files about the kernel.
Contained: nothing is found or can be opened.
Harmless: files are opened for reading and closed; the init of a bare run is a child of the script.
"""

import errno
import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import attempt

UP = "../" * 40
KERNEL = ["kcore", "kmsg", "kpagecount", "kpageflags", "slabinfo", "timer_list", "vmallocinfo", "pagetypeinfo"]


def list_descriptors(pid):
    for name in os.listdir(f"/proc/{pid}/fd"):
        os.readlink(f"/proc/{pid}/fd/{name}")


def read(path):
    with open(path, "rb") as file:
        file.read(64)


def main():
    args = attempt.arguments(__doc__, host_file=True, host_pid=True)
    gone, file, host = [errno.ENOENT, errno.ESRCH], args.host_file.lstrip("/"), args.host_pid

    def probe(name, path, absent=None):
        attempt.probe(name, lambda: attempt.open_and_close(path), gone, absent)

    probe("host file by its path", f"/{file}")
    probe("host file through /proc/self/root", f"/proc/self/root/{file}")
    probe("host file through /proc/self/root and ..", f"/proc/self/root/{UP}{file}")
    probe("host file through /proc/self/cwd and ..", f"/proc/self/cwd/{UP}{file}")
    probe("host file through a host process's root", f"/proc/{host}/root/{file}")
    probe("host process in /proc", f"/proc/{host}/stat")
    attempt.probe("host process by signal 0", lambda: os.kill(host, 0), gone)
    with attempt.init() as init:
        probe("host file through the init's root", f"/proc/{init}/root/{file}")
        for name in ("environ", "maps", "auxv", "stack"):
            attempt.probe(f"init's {name}", lambda name=name: read(f"/proc/{init}/{name}"), gone)
        attempt.probe("init's root", lambda: os.listdir(f"/proc/{init}/root") and None, gone)
        attempt.probe("init's working directory", lambda: os.listdir(f"/proc/{init}/cwd") and None, gone)
        attempt.probe("init's descriptors", lambda: list_descriptors(init), gone)
    for name in KERNEL:
        probe(f"/proc/{name}", f"/proc/{name}", {errno.ENOENT: f"this kernel has no /proc/{name}"})


main()
