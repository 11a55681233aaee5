"""Cases 46, 49 and 51: connections without the proxy: to the host, its neighbours, name servers, by UDP.

Attempted: to reach `--port`, `--other-port` and `--udp-port` on the loopback address of the host without the proxy and
its variables; gateways, LAN and outside addresses by TCP and by UDP (DNS, QUIC); to resolve a name; to find any
interface but loopback.
Contained: refused, or no route.
Harmless: other addresses than loopback are tried in sandboxes only, where no route exists; bare runs connect to the
servers of the harness on loopback instead.
"""

import errno
import os
import socket
import struct
import sys
import urllib.request

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import attempt

TIMEOUT_SECONDS = 30
BLOCKED = [errno.ECONNREFUSED, errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EADDRNOTAVAIL]
# The last one is reserved for documentation (RFC 5737).
TARGETS = {
    "gateway of a container bridge": "172.17.0.1",
    "gateway of a LAN": "192.168.0.1",
    "neighbour in a LAN": "10.0.0.2",
    "outside host": "192.0.2.1",
}


def connect(address, port, family=socket.AF_INET):
    with socket.socket(family) as connection:
        connection.settimeout(TIMEOUT_SECONDS)
        connection.connect((address, port))


def exchange_datagram(address, port):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        datagrams.settimeout(2 if attempt.SANDBOXED else TIMEOUT_SECONDS)
        datagrams.connect((address, port))
        # A query for the name "escape", type A.
        datagrams.send(struct.pack(">6H", 1, 0x100, 1, 0, 0, 0) + b"\6escape\0" + struct.pack(">2H", 1, 1))
        try:
            datagrams.recv(512)
        except TimeoutError as error:
            raise OSError(errno.EHOSTUNREACH, "no response") from error


def fetch_without_variables(port):
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            del os.environ[name]
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=TIMEOUT_SECONDS).close()
    except urllib.error.URLError as error:
        raise error.reason from error


def resolve(name):
    try:
        socket.getaddrinfo(name, 80)
    except socket.gaierror as error:
        raise OSError(errno.ENETUNREACH, "no such name") from error


def interfaces():
    return sorted(name for _, name in socket.if_nameindex() if name != "lo")


def main():
    args = attempt.arguments(__doc__)

    def probe(name, call):
        attempt.probe(name, call, BLOCKED)

    probe("host's loopback", lambda: connect("127.0.0.1", args.port))
    probe("host's other port", lambda: connect("127.0.0.1", args.other_port))
    probe("host's loopback by 0.0.0.0", lambda: connect("0.0.0.0", args.port))
    probe("host's loopback by mapped IPv6", lambda: connect("::ffff:127.0.0.1", args.port, socket.AF_INET6))
    probe("web request with the proxy's variables unset", lambda: fetch_without_variables(args.port))
    probe("host's loopback by UDP", lambda: exchange_datagram("127.0.0.1", args.udp_port))
    for name, address in TARGETS.items():
        target = (address, 80) if attempt.SANDBOXED else ("127.0.0.1", args.port)
        probe(f"{name} by TCP", lambda target=target: connect(*target))
    for name, port in (("DNS", 53), ("QUIC", 443)):
        target = ("192.0.2.1", port) if attempt.SANDBOXED else ("127.0.0.1", args.udp_port)
        probe(f"{name} by UDP", lambda target=target: exchange_datagram(*target))
    probe("name server of the C library", lambda: resolve("example.com" if attempt.SANDBOXED else "localhost"))
    found = interfaces()
    attempt.report("interfaces beyond loopback", not found, ", ".join(found) or "none")


main()
