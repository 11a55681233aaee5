"""Cases 48, 49, 50 and 52 with raw requests: names that two parsers may read differently, hosts that no rule allows,
redirects and ports.

Attempted: to make the proxy connect to another address than `127.0.0.1:--port`, which is allowed: with NUL, dots, user
names, other notations, another host in the Host field or in a second request, another port, the target of a redirect, a
name with a private address, DNS over HTTPS.
Contained: 400 or 403 before any connection.
Harmless: only localhost is resolved; in a bare run a server of the harness takes the role of the proxy.
DNS rebinding and server names are tested with an own resolver in crates/egress/src/proxy/tests.rs.
"""

import http.client
import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import attempt
import proxied


def main():
    args = attempt.arguments(__doc__)
    proxied.require_working(args)
    allowed, other = b"127.0.0.1:%d" % args.port, b"127.0.0.1:%d" % args.other_port
    targets = {
        "NUL before the allowed host": b"evil.example\0" + allowed,
        "NUL after the allowed host": b"127.0.0.1\0.evil.example:%d" % args.port,
        "encoded NUL": b"127.0.0.1%%00.evil.example:%d" % args.port,
        "trailing dot": b"127.0.0.1.:%d" % args.port,
        "two trailing dots": b"localhost..:%d" % args.port,
        "name of the same address": b"localhost:%d" % args.port,
        "name of the same address with a dot": b"localhost.:%d" % args.port,
        "short form": b"127.1:%d" % args.port,
        "hexadecimal": b"0x7f000001:%d" % args.port,
        "octal": b"0177.0.0.1:%d" % args.port,
        "other loopback address": b"127.0.0.2:%d" % args.port,
        "zero address": b"0.0.0.0:%d" % args.port,
        "IPv6 loopback": b"[::1]:%d" % args.port,
        "mapped IPv6": b"[::ffff:127.0.0.1]:%d" % args.port,
        "user name that looks like the host": allowed + b"@" + other,
        "backslash": allowed + b"\\@" + other,
        "allowed host as a subdomain": b"127.0.0.1.evil.example:%d" % args.port,
        "full-width dots": "127。0。0。1:%d".encode() % args.port,
        "newline": b"127.0.0.1\n:%d" % args.port,
        "wrong port": other,
        "port with a sign": b"127.0.0.1:+%d" % args.port,
        "port beyond 65535": b"127.0.0.1:%d" % (args.port + 65536),
        "name with a private address": b"localhost:%d" % args.other_port,
        "DNS over HTTPS": b"dns.google:443",
    }
    for name, target in targets.items():
        proxied.report(f"{name}, by request", proxied.get(args.proxy, b"http://" + target + b"/"))
        proxied.report(f"{name}, by tunnel", proxied.connect(args.proxy, target))
    request = b"GET http://%s/ HTTP/1.1\r\n" % allowed
    fields = {
        "Host field of another host": b"Host: " + other,
        "two Host fields": b"Host: %s\r\nHost: %s" % (allowed, other),
        "Host field after a bare newline": b"Host: %s\nHost: %s" % (allowed, other),
        "two lengths": b"Host: %s\r\nContent-Length: 0\r\nContent-Length: 5" % allowed,
        "length and chunks": b"Host: %s\r\nContent-Length: 5\r\nTransfer-Encoding: chunked" % allowed,
    }
    for name, field in fields.items():
        proxied.report(name, proxied.send(args.proxy, request + field + b"\r\n\r\n"))
    proxied.report("where a redirect leads", follow_redirect(args.proxy, allowed))


def follow_redirect(proxy, allowed):
    """Requests a redirect from the allowed server, and its target from the proxy; it leads to the other port."""
    connection = http.client.HTTPConnection("127.0.0.1", proxy, timeout=proxied.TIMEOUT_SECONDS)
    connection.request("GET", f"http://{allowed.decode()}/redirect", headers={"Host": allowed.decode()})
    response = connection.getresponse()
    if response.status != 302:
        sys.exit(f"the allowed server returned {response.status} instead of a redirect")
    return proxied.get(proxy, response.headers["Location"].encode())


main()
