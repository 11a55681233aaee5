"""Raw HTTP requests to the proxy of a sandbox, including invalid ones."""

import socket
import sys

import attempt

TIMEOUT_SECONDS = 30


def send(proxy, request):
    """Sends bytes to the proxy; returns the status of its response, or None if it closes the connection."""
    try:
        with socket.create_connection(("127.0.0.1", proxy), TIMEOUT_SECONDS) as connection:
            connection.sendall(request)
            status_line = connection.makefile("rb").readline().split()
    except ConnectionError:
        return None
    return int(status_line[1]) if len(status_line) > 1 and status_line[1].isdigit() else None


def get(proxy, url, host=None):
    host = host or url.partition(b"://")[2].partition(b"/")[0]
    return send(proxy, b"GET " + url + b" HTTP/1.1\r\nHost: " + host + b"\r\nConnection: close\r\n\r\n")


def connect(proxy, target):
    return send(proxy, b"CONNECT " + target + b" HTTP/1.1\r\nHost: " + target + b"\r\n\r\n")


def require_working(args):
    """Ends the script unless the proxy forwards an allowed request: a broken proxy refuses everything."""
    status = get(args.proxy, b"http://127.0.0.1:%d/" % args.port)
    if status != 200:
        sys.exit(f"the allowed server returns {status} through the proxy, so no attempt is possible")


def report(name, status):
    """Reports a refusal before any connection, which is 400 or 403, as contained."""
    attempt.report(name, status in (400, 403), status or "closed")
