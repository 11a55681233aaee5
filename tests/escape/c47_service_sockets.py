"""Case 47: sockets of services of the host: abstract ones, those of docker and D-Bus, and others by their path.

Attempted: to connect to `--abstract`, to the `socket` in `--outside`, and to well-known sockets; to find any socket
in /proc/net/unix.
Contained: none exists.
Harmless: connections are closed at once without sending anything.
"""

import errno
import os
import socket
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import attempt

WELL_KNOWN = [
    "/run/docker.sock",
    "/run/containerd/containerd.sock",
    "/run/podman/podman.sock",
    "/run/dbus/system_bus_socket",
    "/run/systemd/private",
    "/run/systemd/journal/socket",
    "/tmp/.X11-unix/X0",
]
GONE = [errno.ENOENT, errno.ECONNREFUSED]


def connect(address, kind=socket.SOCK_STREAM):
    with socket.socket(socket.AF_UNIX, kind) as connection:
        connection.connect(address)


def connect_well_known(path):
    try:
        connect(path)
    except OSError as error:
        if error.errno != errno.EPROTOTYPE:
            raise
        connect(path, socket.SOCK_DGRAM)


def bound_names():
    with open("/proc/net/unix") as sockets:
        names = [line.split()[7] for line in sockets if len(line.split()) > 7]
    return [name for name in names if name != "Path"]


def main():
    args = attempt.arguments(__doc__)
    attempt.probe("abstract socket", lambda: connect(f"\0{args.abstract}"), GONE)
    attempt.probe("socket by its path", lambda: connect(os.path.join(args.outside, "socket")), GONE)
    for path in WELL_KNOWN:
        absent = {errno.ENOENT: f"this host has no {path}", errno.ECONNREFUSED: f"no service listens on {path}"}
        attempt.probe(path, lambda path=path: connect_well_known(path), GONE, absent)
    found = bound_names()
    attempt.report("names of sockets in /proc/net/unix", not found, ", ".join(found[:5]) or "none")


main()
