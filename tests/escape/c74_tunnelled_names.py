"""Case 74: another server's name inside an allowed tunnel.

Attempted: to open a tunnel to `localhost:--port`, which is allowed, and to address another host inside it: plain
requests with another Host field, in other notations, in pieces; TLS ClientHello messages with another server name or
with none. A reverse proxy at the allowed address would forward them to the host that they name.
Contained: the tunnel is closed before the server has responded.
Harmless: all bytes go to the web server of the harness, which responds to any text that ends with an empty line.
"""

import os
import socket
import struct
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import attempt
import proxied

BODY = b"of the host"


def vector(data):
    return struct.pack(">H", len(data)) + data


def hello(name=None, fragment=1 << 14):
    """A TLS ClientHello, in records of at most `fragment` bytes."""
    extensions = b"\xff\x01\0\x01\0"
    if name is not None:
        extensions += b"\0\0" + vector(vector(b"\0" + vector(name)))
    body = b"\x03\x03" + b"\7" * 32 + b"\0\0\x02\x13\x01\x01\0" + vector(extensions)
    message = b"\x01" + struct.pack(">I", len(body))[1:] + body
    pieces = [message[start : start + fragment] for start in range(0, len(message), fragment)]
    return b"".join(b"\x16\x03\x01" + vector(piece) for piece in pieces)


def tunnel(args):
    """Connects to the server: in a sandbox through a tunnel, in a bare run directly."""
    if not attempt.SANDBOXED:
        return socket.create_connection(("127.0.0.1", args.port), proxied.TIMEOUT_SECONDS)
    connection = socket.create_connection(("127.0.0.1", args.proxy), proxied.TIMEOUT_SECONDS)
    target = b"localhost:%d" % args.port
    connection.sendall(b"CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n" % (target, target))
    response = connection.recv(4096)
    if b" 200 " not in response:
        sys.exit(f"the allowed tunnel was not opened: {response!r}")
    return connection


def has_response(args, pieces):
    """Sends these bytes, which end with an empty line; returns whether the server responds."""
    with tunnel(args) as connection:
        try:
            for piece in pieces:
                connection.sendall(piece)
                time.sleep(0.1 if len(pieces) > 1 else 0)
            return BODY in connection.makefile("rb").read()
        except OSError:
            return False


def main():
    args = attempt.arguments(__doc__)
    good = b"GET / HTTP/1.1\r\nHost: localhost:%d\r\n\r\n" % args.port
    if not has_response(args, [good]):
        sys.exit("the server does not respond to an allowed request in the tunnel, so no attempt is possible")
    evil = b"Host: evil.example\r\n\r\n"
    end = b"\r\n\r\n"
    openings = {
        "another Host field": [b"GET / HTTP/1.1\r\n" + evil],
        "two Host fields": [b"GET / HTTP/1.1\r\nHost: localhost:%d\r\n" % args.port + evil],
        "another host in the target": [b"GET http://evil.example/ HTTP/1.1\r\n\r\n"],
        "another Host field after an empty line": [b"\r\n \r\nGET / HTTP/1.1\r\n" + evil],
        "lower case": [b"get / http/1.1\r\n" + evil],
        "lines ended by newlines alone": [b"GET / HTTP/1.1\nHost: evil.example\n\r\n"],
        "another Host field in pieces": [b"GE", b"T / HTTP/1.1\r\nHo", b"st: evil.example\r\n\r\n"],
        "a tunnel inside the tunnel": [b"CONNECT evil.example:443 HTTP/1.1\r\n\r\n"],
        "HTTP/2 in plain text": [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"],
        "a ClientHello without a server name": [hello() + end],
        "a ClientHello to another server": [hello(b"evil.example") + end],
        "a ClientHello to another server in small records": [hello(b"evil.example", 1) + end],
        "a ClientHello without a server name after an alert": [b"\x15\x03\x01\0\x02\x01\0" + hello() + end],
        "a ClientHello in the format of SSL 2": [b"\x80\x2e\x01\x03\x01" + b"\0" * 43 + end],
    }
    for name, pieces in openings.items():
        responded = has_response(args, pieces)
        attempt.report(name, not responded, "the server responded" if responded else "closed")


main()
