"""Every kind of process killed with SIGKILL at a random moment under load, and the worker stopped with SIGSTOP."""

import os
import pathlib
import random
import signal
import time

from host import MARK, eventually, inner_pid, is_alive, parent, text
from service import Client, Told

HOSTED = pathlib.Path(__file__).resolve().parent.parent.parent / "crates/testkit/fixtures/bad_server.py"


def inits(service):
    """Of the sessions of callers, which are told by a file; others wait ready."""
    is_used = lambda pid: os.path.exists(f"/proc/{pid}/root/workspace/{MARK}")
    return [pid for pid in service.family() if inner_pid(pid) == 1 and is_used(pid)]


def kernels(service):
    of = set(inits(service))
    return [pid for pid in service.family() if parent(pid) in of and inner_pid(pid) > 1]


def zygotes(service):
    of = set(service.launchers())
    return [pid for pid in service.family() if parent(pid) in of and text(f"/proc/{pid}/comm").startswith("python")
            and inner_pid(pid) == pid]


def wanted_zygotes(service):
    """Another takes the place of a dead one when a sandbox is wanted, and not before. One that is killed before it was
    ever of use counts as a failure, after which the next is waited for longer and longer: so they get a second."""
    living = lambda: list(filter(is_alive, zygotes(service)))
    if living():
        return living()
    client = Client(service)
    for pause in (1, 0):
        session = client.call("execute_code", code="1")[0]["session_id"]
        client.call("stop_session", session_id=session)
        time.sleep(pause)
    client.close()
    return living()


def kill_one(kind, find, must_tell=False):
    """A fault that kills one process of a kind at a time, and waits until every caller is served again. Where somebody's
    state is lost with it, that one must be told."""

    def fault(world):
        service, load, longest, before = world.service, world.load, 0.0, world.load.total()
        worker = service.worker()
        for _ in range(world.rounds):
            time.sleep(random.uniform(0, 0.5))
            victims = eventually(f"there is no {kind}", lambda: list(filter(is_alive, find(service))))
            os.kill(random.choice(victims), signal.SIGKILL)
            longest = max(longest, load.settle())
        assert service.worker() == worker, "the worker died of it"
        if must_tell:
            # A call may have ended well just before its interpreter was killed.
            told = lambda: (load.total() - before)["told"] >= world.rounds
            eventually(f"not all who had lost their {kind} were told", told)
        seen = load.total() - before
        assert seen["broken"] == 0, f"{seen['broken']} conversations broke off"
        return f"{world.rounds} killed; {seen['fine']} calls fine, {seen['told']} told why not; all served after {longest:.1f} s"

    return fault


def worker(world):
    service, load, longest, before = world.service, world.load, 0.0, world.load.total()
    client = Client(service)
    session = client.call("execute_code", code="kept = 42")[0]["session_id"]
    client.close()
    for _ in range(world.rounds):
        time.sleep(random.uniform(0, 0.5))
        dead = service.worker()
        service.kill()
        eventually("the worker lives", lambda: not is_alive(dead))
        service.revive()
        longest = max(longest, load.settle())
        answer, _, _ = client.call("execute_code", code="print(kept)", session_id=session)
        assert answer["stdout"] == "42\n", f"a session has lost its variables: {answer}"
        client.close()
    seen = load.total() - before
    assert not (service.supervised and seen["refused"]), f"{seen['refused']} connections were refused"
    by = "the supervisor" if service.supervised else "hand"
    return f"{world.rounds} killed, started again by {by}; variables kept; {seen['broken']} calls broke off, {seen['fine']} fine; all served after {longest:.1f} s"


def stopped_worker(world):
    service, load = world.service, world.load
    worker = service.worker()
    os.kill(worker, signal.SIGSTOP)
    if service.supervised:
        eventually("it is not replaced", lambda: service.worker() not in (None, worker), 90)
        eventually("it does not serve", lambda: service.health(5)[0] == 200, 60)
        return f"replaced after its probes failed; all served again after {load.settle():.1f} s"
    time.sleep(5)
    assert is_alive(worker)
    os.kill(worker, signal.SIGCONT)
    took = load.settle()
    assert service.worker() == worker, "it did not survive"
    return f"calls waited for 5 s, and went on {took:.1f} s after SIGCONT (nobody supervises `serve`)"


def supervisor(world):
    """With the supervisor its worker ends; whoever starts the next finds the sessions, within their lease."""
    service, load, longest = world.service, world.load, 0.0
    if not service.supervised:
        return "SKIPPED: this program has no supervisor"
    client = Client(service)
    session = client.call("execute_code", code="kept = 42")[0]["session_id"]
    for _ in range(world.rounds):
        client.close()
        time.sleep(random.uniform(0, 0.5))
        orphan = service.worker()
        service.main.kill()
        service.main.wait()
        eventually("the worker outlives its supervisor", lambda: not is_alive(orphan))
        service.start()
        longest = max(longest, load.settle())
        answer, _, _ = client.call("execute_code", code="print(kept)", session_id=session)
        assert answer["stdout"] == "42\n", f"a session has lost its variables: {answer}"
    client.close()
    return f"{world.rounds} killed, started again by hand; workers ended with it; variables kept; all served after {longest:.1f} s"


def hosted_server(world):
    service, client = world.service, Client(world.service)
    entry = {"name": "hosted", "command": "python3", "args": [str(HOSTED), "well"]}
    service.operator("POST", "/v1/servers", entry)
    connected = lambda: service.operator("GET", "/v1/servers/hosted")["status"] == "connected"
    eventually("it does not connect", connected, 60)
    mark = f"{HOSTED.name}\0well\0"
    told = 0
    for _ in range(world.rounds):
        mine = lambda: [pid for pid in service.family() if mark in text(f"/proc/{pid}/cmdline")]
        os.kill(random.choice(eventually("it does not run", mine)), signal.SIGKILL)

        def answers():
            nonlocal told
            try:
                return not client.call("hosted__echo", message="x")[1]
            except Told:
                told += 1
                return False

        eventually("it does not come back", answers, 60)
    service.operator("DELETE", "/v1/servers/hosted")
    client.close()
    world.load.settle()
    return f"{world.rounds} killed; it was started again each time; {told} calls told why not; others undisturbed"


FAULTS = {
    "kill -9 kernel": kill_one("kernel", kernels, must_tell=True),
    "kill -9 init": kill_one("init", inits, must_tell=True),
    "kill -9 zygote": kill_one("zygote", wanted_zygotes),
    "kill -9 launcher": kill_one("launcher", lambda service: service.launchers()),
    "kill -9 hosted server": hosted_server,
    "kill -9 worker": worker,
    "kill -9 supervisor": supervisor,
    "SIGSTOP worker": stopped_worker,
}
