"""Case 28: packet, netlink, alg, vsock and raw sockets.

Attempted: to open each kind; SOCK_PACKET by way of AF_INET; every other address family; to change a link over
NETLINK_ROUTE, which may be read.
Contained: refused.
Harmless: the sockets send nothing; a bare run changes the loopback link of a new network namespace.
"""

import errno
import os
import socket
import struct
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import attempt

NO_SUCH = (errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT, errno.ESOCKTNOSUPPORT)
SOCK_PACKET = 10
PLAIN = {socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK}
INET, INET6 = socket.AF_INET, socket.AF_INET6
RAW, DGRAM, STREAM = socket.SOCK_RAW, socket.SOCK_DGRAM, socket.SOCK_STREAM

SOCKETS = {
    "packet socket, raw": (socket.AF_PACKET, RAW, 0x0300),
    "packet socket, datagram": (socket.AF_PACKET, DGRAM, 0x0300),
    "packet socket by way of AF_INET": (INET, SOCK_PACKET, 0x0300),
    "raw socket": (INET, RAW, socket.IPPROTO_ICMP),
    "raw socket with own headers": (INET, RAW, socket.IPPROTO_RAW),
    "raw IPv6 socket": (INET6, RAW, socket.IPPROTO_ICMPV6),
    "alg socket": (socket.AF_ALG, socket.SOCK_SEQPACKET, 0),
    "vsock socket": (socket.AF_VSOCK, STREAM, 0),
    "xdp socket": (44, RAW, 0),
    "sctp socket": (INET, STREAM, 132),
    "mptcp socket": (INET, STREAM, 262),
    "udplite socket": (INET, DGRAM, 136),
    "netlink socket for usersock": (socket.AF_NETLINK, RAW, 2),
    "netlink socket for sock_diag": (socket.AF_NETLINK, RAW, 4),
    "netlink socket for xfrm": (socket.AF_NETLINK, RAW, 6),
    "netlink socket for audit": (socket.AF_NETLINK, RAW, 9),
    "netlink socket for connector": (socket.AF_NETLINK, RAW, 11),
    "netlink socket for netfilter": (socket.AF_NETLINK, RAW, 12),
    "netlink socket for uevents": (socket.AF_NETLINK, RAW, 15),
    "netlink socket for generic": (socket.AF_NETLINK, RAW, 16),
    "netlink socket for crypto": (socket.AF_NETLINK, RAW, 21),
}


def open_socket(family, kind, protocol):
    os.close(attempt.syscall("socket", family, kind, protocol))


def any_other_family():
    last = None
    for family in set(range(64)) - PLAIN:
        for kind in (STREAM, DGRAM, RAW, socket.SOCK_SEQPACKET):
            try:
                open_socket(family, kind, 0)
                return f"family {family}"
            except OSError as error:
                last = error
    raise last


def change_link():
    attempt.unshare_bare(attempt.CLONE_NEWNET)
    with socket.socket(socket.AF_NETLINK, RAW, socket.NETLINK_ROUTE) as netlink:
        # RTM_NEWLINK, request with acknowledgement; ifinfomsg: index 1 (lo), flags and mask: up
        link = struct.pack("BxHiII", 0, 0, 1, 1, 1)
        netlink.settimeout(attempt.DEADLINE_SECONDS)
        netlink.send(struct.pack("IHHII", 16 + len(link), 16, 1 | 4, 1, 0) + link)
        error = struct.unpack_from("i", netlink.recv(4096), 16)[0]
    if error:
        raise OSError(-error, "netlink")


def main():
    attempt.arguments(__doc__)
    absent = {number: "this kernel has no such socket" for number in NO_SUCH}
    for name, kind in SOCKETS.items():
        attempt.probe(name, lambda kind=kind: open_socket(*kind), also=NO_SUCH, absent=absent)
    attempt.probe("any other address family", any_other_family, also=NO_SUCH)
    attempt.probe("change of a link over netlink", change_link)


main()
