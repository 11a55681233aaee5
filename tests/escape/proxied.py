"""Raw requests to the way out of a sandbox, as no well-behaved client would write them."""

import socket
import sys

import attempt

SECONDS = 5


def ask(proxy, request):
    """Sends bytes to the proxy; returns the status of its answer, or None for a closed connection."""
    try:
        with socket.create_connection(("127.0.0.1", proxy), SECONDS) as connection:
            connection.sendall(request)
            answer = connection.makefile("rb").readline().split()
    except ConnectionError:
        return None
    return int(answer[1]) if len(answer) > 1 and answer[1].isdigit() else None


def get(proxy, url, host=None):
    host = host or url.partition(b"://")[2].partition(b"/")[0]
    return ask(proxy, b"GET " + url + b" HTTP/1.1\r\nHost: " + host + b"\r\nConnection: close\r\n\r\n")


def connect(proxy, place):
    return ask(proxy, b"CONNECT " + place + b" HTTP/1.1\r\nHost: " + place + b"\r\n\r\n")


def require_working(args):
    """Ends the script unless what is allowed gets through: a broken proxy would refuse everything."""
    status = get(args.proxy, b"http://127.0.0.1:%d/" % args.port)
    if status != 200:
        sys.exit(f"the allowed server answers {status} through the proxy, so nothing can be tried")


def judge(name, status):
    """Only a refusal before any connection counts: 400, or 403."""
    attempt.report(name, status in (400, 403), status or "closed")
