# The client of the egress benchmark, for sessions and for the host. NAME and PORT are those of the server, and HAS_TLS
# says whether it uses TLS. ADDRESS is its address on the host, and None in a sandbox, where the resolver has another one.
# AUTHORITY is the file with the authority of its certificate, and None in a sandbox, where variables name the file.

import os
import socket
import ssl
import struct
import time

tls = ssl.create_default_context(cafile=AUTHORITY) if HAS_TLS else None


def address():
    """Asks the resolver of the sandbox, whatever is in /etc/hosts."""
    if ADDRESS is not None:
        return ADDRESS
    labels = b"".join(bytes([len(label)]) + label.encode() for label in NAME.split("."))
    query = os.urandom(2) + struct.pack(">HHHHH", 0x100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">HH", 1, 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as resolver:
        resolver.settimeout(10)
        resolver.sendto(query, ("127.0.0.1", 53))
        answer = resolver.recv(512)
    return socket.inet_ntoa(answer[-4:])


def connect(to):
    connection = socket.create_connection((to, PORT), timeout=60)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return tls.wrap_socket(connection, server_hostname=NAME) if tls else connection


buffer = bytearray(1 << 20)


def download(connection, length):
    connection.sendall(f"GET /{length} HTTP/1.1\r\nHost: {NAME}:{PORT}\r\n\r\n".encode())
    received = connection.recv(65536)
    head, end, body = received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200") and end, received
    missing = length - len(body)
    while missing > 0:
        size = connection.recv_into(buffer)
        assert size > 0, "the connection was closed"
        missing -= size
    assert missing == 0


def kept_request(count):
    """Returns the time of a small request on a connection that exists."""
    with connect(address()) as connection:
        download(connection, 100)
        start = time.perf_counter()
        for _ in range(count):
            download(connection, 100)
        return (time.perf_counter() - start) / count


def first_connection():
    """Returns the time of a lookup, a connection and a small request."""
    start = time.perf_counter()
    with connect(address()) as connection:
        download(connection, 100)
        return time.perf_counter() - start


def transfer(length):
    """Returns the time of a large response."""
    with connect(address()) as connection:
        start = time.perf_counter()
        download(connection, length)
        return time.perf_counter() - start
