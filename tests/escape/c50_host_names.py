"""Cases 48, 49, 50 and 52, as far as raw requests go: names that two readers could read differently, hosts that no
rule allows, redirects and ports.

Attempted: to get the proxy to connect anywhere but to `127.0.0.1:--port`, which is allowed: NUL, dots, user names,
other spellings, a Host field or a second request that names another place, the other port, where a redirect leads
too, a name with a private address, DNS over HTTPS.
Contained: 400 or 403 before any connection.
Harmless: nothing is resolved but localhost; outside, the harness's server stands in for the proxy.
Rebinding and server names are tested where names can be made up: crates/egress/src/proxy/tests.rs.
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
    places = {
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
    for name, place in places.items():
        proxied.judge(f"{name}, by request", proxied.get(args.proxy, b"http://" + place + b"/"))
        proxied.judge(f"{name}, by tunnel", proxied.connect(args.proxy, place))
    request = b"GET http://%s/ HTTP/1.1\r\n" % allowed
    fields = {
        "Host field of another place": b"Host: " + other,
        "two Host fields": b"Host: %s\r\nHost: %s" % (allowed, other),
        "Host field after a bare newline": b"Host: %s\nHost: %s" % (allowed, other),
        "two lengths": b"Host: %s\r\nContent-Length: 0\r\nContent-Length: 5" % allowed,
        "length and chunks": b"Host: %s\r\nContent-Length: 5\r\nTransfer-Encoding: chunked" % allowed,
    }
    for name, field in fields.items():
        proxied.judge(name, proxied.ask(args.proxy, request + field + b"\r\n\r\n"))
    proxied.judge("where a redirect leads", follow_redirect(args.proxy, allowed))


def follow_redirect(proxy, allowed):
    """Asks the allowed server for a redirect, and the proxy for its target; the harness's leads to the other port."""
    connection = http.client.HTTPConnection("127.0.0.1", proxy, timeout=proxied.SECONDS)
    connection.request("GET", f"http://{allowed.decode()}/redirect", headers={"Host": allowed.decode()})
    answer = connection.getresponse()
    if answer.status != 302:
        sys.exit(f"the allowed server answers {answer.status}, not with a redirect")
    return proxied.get(proxy, answer.headers["Location"].encode())


main()
