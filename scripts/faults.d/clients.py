"""Clients that are slow, silent, dead or too many, and a server without descriptors."""

import json
import os
import resource
import socket
import struct
import time

from host import eventually
from service import Broken, Client, Told


def connect(service):
    stream = socket.create_connection(("127.0.0.1", service.port), 10)
    stream.settimeout(10)
    return stream


def request(service, body, length=None):
    head = f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:{service.port}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body) if length is None else length}\r\n\r\n{body}".encode()


def bad_clients(world):
    """Each kind holds what it can while others work."""
    service, load, before = world.service, world.load, world.load.total()
    noisy = {"name": "execute_code", "arguments": {"code": "print('x' * 3_000_000)"}}
    call = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": noisy})
    behaviours = {
        "silent": b"",
        "half a head": b"POST /mcp HTTP/1.1\r\nHost: 127",
        "half a body": request(service, '{"jsonrpc"', 1000),
        "does not read": request(service, call),
    }
    streams = []
    for says in behaviours.values():
        for _ in range(4):
            stream = connect(service)
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stream.sendall(says)
            streams.append(stream)
    for _ in range(20):
        stream = connect(service)
        stream.sendall(request(service, call))
        # Closed with a reset, as by a client that dies.
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        stream.close()
    took = load.settle()
    time.sleep(1)
    load.settle()
    for stream in streams:
        stream.close()
    seen = load.total() - before
    assert seen["broken"] == 0, f"{seen['broken']} calls of others broke off"
    return f"{len(streams)} slow or silent and 20 dead; others undisturbed ({seen['fine']} calls fine, the slowest round {took:.1f} s)"


def too_many(world):
    """More connections than there is room for: each is told, none waits; whoever is connected is served."""
    service, load = world.service, world.load
    streams = []
    try:
        for _ in range(world.most_connections):
            streams.append(connect(service))
        late = connect(service)
        streams.append(late)
        late.sendall(request(service, json.dumps({"jsonrpc": "2.0", "id": 7, "method": "ping"})))
        answer = late.recv(65536).decode()
        head, _, body = answer.partition("\r\n\r\n")
        error = json.loads(body)
        assert " 503 " in head and "retry-after: 1" in head.lower(), head
        assert error["error"]["code"] == -32001 and error["error"]["data"]["retry_after_ms"] > 0, error
        assert error["id"] == 7, error
        assert service.health()[0] == 200, "a probe is not answered"
        took = load.settle()
    finally:
        for stream in streams:
            stream.close()
    client = Client(service)

    def is_served():
        try:
            return client.call("execute_code", code="1")[0]
        except Told:
            return False

    eventually("there is no room again", is_served, 20)
    client.close()
    return f"{len(streams)} connections: 503 with Retry-After and -32001 at once; those connected were served ({took:.1f} s)"


def descriptors(world):
    """The server may open no more files for a while."""
    service, load, before = world.service, world.load, world.load.total()
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
            except (Told, Broken):
                refused += 1
            time.sleep(0.2)
        assert service.worker() == worker, "it died"
    finally:
        resource.prlimit(worker, resource.RLIMIT_NOFILE, usual)
    for stream in streams:
        stream.close()
    took = load.settle()
    eventually("it is not healthy", lambda: service.health()[0] == 200)
    newcomer.call("execute_code", code="1", session_id=session)
    newcomer.call("execute_code", code="1")
    newcomer.close()
    assert service.worker() == worker, "it died"
    assert refused > 0, "nothing was refused: the limit was none"
    seen = load.total() - before
    return f"limit {used + 1} for a while; {refused} of 12 new sessions refused; {seen['fine']} calls fine, {seen['told']} told why not; all served {took:.1f} s after"


FAULTS = {"slow and dead clients": bad_clients, "too many clients": too_many, "no descriptors left": descriptors}
