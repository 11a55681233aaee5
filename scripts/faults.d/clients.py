"""Slow, silent, dead and too many clients, and a server without free descriptors."""

import json
import os
import resource
import socket
import struct
import time

from host import wait_until
from service import Client, Disconnected, Refused

CHECKS = 5


def connect(service):
    stream = socket.create_connection(("127.0.0.1", service.port), 10)
    stream.settimeout(10)
    return stream


def request(service, body, length=None):
    head = f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:{service.port}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body) if length is None else length}\r\n\r\n{body}".encode()


def bad_clients(context):
    """Clients of each kind occupy what they can while others work."""
    service, load, before = context.service, context.load, context.load.total()
    large = {"name": "execute_code", "arguments": {"code": "print('x' * 3_000_000)"}}
    call = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": large})
    behaviours = {
        "silent": b"",
        "half a head": b"POST /mcp HTTP/1.1\r\nHost: 127",
        "half a body": request(service, '{"jsonrpc"', 1000),
        "does not read": request(service, call),
    }
    streams = []
    for data in behaviours.values():
        for _ in range(4):
            stream = connect(service)
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stream.sendall(data)
            streams.append(stream)
    for _ in range(20):
        stream = connect(service)
        stream.sendall(request(service, call))
        # Closes with a reset, like a client that dies.
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        stream.close()
    took = max(load.wait_for_all() for _ in range(CHECKS))
    for stream in streams:
        stream.close()
    results = load.total() - before
    assert results["disconnected"] == 0, f"{results['disconnected']} calls of other clients were cut off"
    others = f"other clients undisturbed ({results['succeeded']} calls succeeded, the slowest round {took:.1f} s)"
    return f"{len(streams)} slow or silent and 20 dead clients; {others}"


def too_many(context):
    """Connections over the limit receive an error at once; those within the limit are served."""
    service, load = context.service, context.load
    streams = []
    try:
        for _ in range(context.max_connections):
            streams.append(connect(service))
        late = connect(service)
        streams.append(late)
        late.sendall(request(service, json.dumps({"jsonrpc": "2.0", "id": 7, "method": "ping"})))
        response = late.recv(65536).decode()
        head, _, body = response.partition("\r\n\r\n")
        error = json.loads(body)
        assert " 503 " in head and "retry-after: 1" in head.lower(), head
        assert error["error"]["code"] == -32001 and error["error"]["data"]["retry_after_ms"] > 0, error
        assert error["id"] == 7, error
        assert service.health()[0] == 200, "a probe is not served"
        took = load.wait_for_all()
    finally:
        for stream in streams:
            stream.close()
    client = Client(service)

    def is_served():
        try:
            return client.call("execute_code", code="1")[0]
        except Refused:
            return False

    wait_until("no new client is served", is_served, 20)
    client.close()
    limit = "503 with Retry-After and -32001 at once"
    return f"{len(streams)} connections: {limit}; connected clients were served ({took:.1f} s)"


def descriptors(context):
    """The server cannot open files for some time."""
    service, load, before = context.service, context.load, context.load.total()
    worker = service.worker()
    usual = resource.prlimit(worker, resource.RLIMIT_NOFILE)
    newcomer = Client(service)
    session = newcomer.call("execute_code", code="1")[0]["session_id"]
    used, refused = len(os.listdir(f"/proc/{worker}/fd")), 0
    try:
        resource.prlimit(worker, resource.RLIMIT_NOFILE, (used + 1, usual[1]))
        streams = [socket.create_connection(("127.0.0.1", service.port), 10) for _ in range(8)]
        for _ in range(12):
            try:
                newcomer.call("execute_code", code="1")
            except (Refused, Disconnected):
                refused += 1
            time.sleep(0.2)
        assert service.worker() == worker, "the worker died"
    finally:
        resource.prlimit(worker, resource.RLIMIT_NOFILE, usual)
    for stream in streams:
        stream.close()
    took = load.wait_for_all()
    wait_until("the server is not healthy", lambda: service.health()[0] == 200)
    newcomer.call("execute_code", code="1", session_id=session)
    newcomer.call("execute_code", code="1")
    newcomer.close()
    assert service.worker() == worker, "the worker died"
    assert refused > 0, "nothing was refused: the limit had no effect"
    results = load.total() - before
    counts = f"{results['succeeded']} calls succeeded, {results['refused']} failed with a reason"
    return f"limit {used + 1}; {refused} of 12 new sessions refused; {counts}; all served after {took:.1f} s"


FAULTS = {"slow and dead clients": bad_clients, "too many clients": too_many, "no descriptors left": descriptors}
