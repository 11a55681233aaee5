"""Case 54: traffic after the end of the proxy.

Attempted: to send a byte every 50 ms through a tunnel to `127.0.0.1:--port`, and to open a new tunnel when it breaks.
In a sandbox the tunnel goes through `--proxy`; in a bare run it is a plain connection.
Contained: the server of the harness receives nothing more after ringfence was killed.
Harmless: a byte every 50 ms to loopback, until the harness ends it.
"""

import contextlib
import os
import socket
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import attempt


def tunnel(args):
    if not attempt.SANDBOXED:
        return socket.create_connection(("127.0.0.1", args.port))
    connection = socket.create_connection(("127.0.0.1", args.proxy))
    connection.sendall(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\n\r\n" % args.port)
    connection.recv(4096)
    return connection


def main():
    args = attempt.arguments(__doc__)
    while True:
        with contextlib.suppress(OSError), tunnel(args) as connection:
            while True:
                connection.sendall(b".")
                time.sleep(0.05)
        time.sleep(0.05)


main()
