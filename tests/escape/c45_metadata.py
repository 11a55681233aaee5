"""Case 45: the metadata addresses of clouds, which offer credentials, in every notation.

Attempted: a request and a tunnel through the proxy to a metadata address in each notation; a direct connection.
Contained: the proxy refuses with 400 or 403 before it connects; there is no direct route.
Harmless: nothing connects to a metadata address: the proxy refuses first and the sandbox has no route; in a bare run a
server of the harness takes the role of the proxy and of the address.
"""

import errno
import os
import socket
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import attempt
import proxied

NOTATIONS = [
    "169.254.169.254",
    "169.254.169.254.",
    "2852039166",
    "0xa9fea9fe",
    "0xa9.0xfe.0xa9.0xfe",
    "0251.0376.0251.0376",
    "025177524776",
    "169.254.43518",
    "169.16689662",
    "[::ffff:169.254.169.254]",
    "[::ffff:a9fe:a9fe]",
    "[::169.254.169.254]",
    "[64:ff9b::a9fe:a9fe]",
    "[2002:a9fe:a9fe::1]",
    "[fe80::a9fe:a9fe%25eth0]",
    "[fd00:ec2::254]",
    "169。254。169。254",
    "%31%36%39.254.169.254",
    "metadata.google.internal",
    "metadata.google.internal.",
    "169.254.170.2",
    "100.100.100.200",
    "192.0.0.192",
    "168.63.129.16",
]
NO_ROUTE = [errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ECONNREFUSED, errno.EADDRNOTAVAIL]


def direct(address, port):
    with socket.create_connection((address, port), proxied.TIMEOUT_SECONDS):
        pass


def main():
    args = attempt.arguments(__doc__)
    proxied.require_working(args)
    for notation in NOTATIONS:
        host = notation.encode()
        proxied.report(f"{notation} by request", proxied.get(args.proxy, b"http://" + host + b"/latest/meta-data/"))
        proxied.report(f"{notation} by tunnel", proxied.connect(args.proxy, host + b":80"))
    target = ("169.254.169.254", 80) if attempt.SANDBOXED else ("127.0.0.1", args.port)
    attempt.probe("directly", lambda: direct(*target), NO_ROUTE)


main()
