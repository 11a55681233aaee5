"""Kills every kind of process with SIGKILL at a random moment under load, and stops the worker with SIGSTOP."""

import os
import pathlib
import random
import signal
import time

from host import MARK, inner_pid, is_alive, parent, text, wait_until
from service import Client, Refused

HOSTED = pathlib.Path(__file__).resolve().parent.parent.parent / "crates/testkit/fixtures/bad_server.py"
MAX_RANDOM_SECONDS = 0.2


def inits(service):
    """Returns the inits of the callers' sessions, which contain a file; other sandboxes wait in the pool."""
    is_used = lambda pid: os.path.exists(f"/proc/{pid}/root/workspace/{MARK}")
    return [pid for pid in service.processes() if inner_pid(pid) == 1 and is_used(pid)]


def kernels(service):
    parents = set(inits(service))
    return [pid for pid in service.processes() if parent(pid) in parents and inner_pid(pid) > 1]


def zygotes(service):
    parents = set(service.launchers())
    is_python = lambda pid: text(f"/proc/{pid}/comm").startswith("python")
    return [pid for pid in service.processes() if parent(pid) in parents and is_python(pid) and inner_pid(pid) == pid]


def used_zygotes(service):
    """Returns zygotes that have already started a sandbox.

    The server replaces a dead zygote when it needs a sandbox. If a zygote dies before its first use, the server waits
    longer and longer before it starts the next.
    """
    living = lambda: list(filter(is_alive, zygotes(service)))
    if living():
        return living()
    client = Client(service)

    def use():
        session = client.call("execute_code", code="1")[0]["session_id"]
        client.call("stop_session", session_id=session)

    use()
    wait_until("there is no new zygote", living)
    use()
    client.close()
    return living()


def kill_one(kind, find, loses_state=False):
    """Returns a fault that kills one process of a kind at a time, and waits until every caller is served again.

    If the state of a session is lost with the process, its caller must receive an error.
    """

    def fault(context):
        service, load, longest, before = context.service, context.load, 0.0, context.load.total()
        worker = service.worker()
        for _ in range(context.rounds):
            time.sleep(random.uniform(0, MAX_RANDOM_SECONDS))
            victims = wait_until(f"there is no {kind}", lambda: list(filter(is_alive, find(service))))
            os.kill(random.choice(victims), signal.SIGKILL)
            longest = max(longest, load.wait_for_all())
        assert service.worker() == worker, "the worker died too"
        if loses_state:
            # A call may have succeeded just before its interpreter was killed.
            is_reported = lambda: (load.total() - before)["refused"] >= context.rounds
            wait_until(f"a caller that lost its {kind} received no error", is_reported)
        results = load.total() - before
        assert results["disconnected"] == 0, f"{results['disconnected']} calls were cut off"
        counts = f"{results['succeeded']} calls succeeded, {results['refused']} failed with a reason"
        return f"{context.rounds} killed; {counts}; all served after {longest:.1f} s"

    return fault


def assert_state(client, session):
    content, _, _ = client.call("execute_code", code="print(value)", session_id=session)
    assert content["stdout"] == "42\n", f"a session has lost its variables: {content}"


def worker(context):
    service, load, longest, before = context.service, context.load, 0.0, context.load.total()
    client = Client(service)
    session = client.call("execute_code", code="value = 42")[0]["session_id"]
    client.close()
    for _ in range(context.rounds):
        time.sleep(random.uniform(0, MAX_RANDOM_SECONDS))
        killed = service.worker()
        service.kill()
        wait_until("the worker is still running", lambda: not is_alive(killed))
        service.revive()
        longest = max(longest, load.wait_for_all())
        assert_state(client, session)
        client.close()
    results = load.total() - before
    is_refused = service.supervised and results["connection refused"]
    assert not is_refused, f"{results['connection refused']} connections were refused"
    by = "the supervisor" if service.supervised else "this script"
    counts = f"{results['disconnected']} calls were cut off, {results['succeeded']} succeeded"
    return f"{context.rounds} killed, restarted by {by}; no variable lost; {counts}; all served after {longest:.1f} s"


def stopped_worker(context):
    service, load = context.service, context.load
    worker = service.worker()
    os.kill(worker, signal.SIGSTOP)
    if service.supervised:
        wait_until("the worker is not replaced", lambda: service.worker() not in (None, worker), 90)
        wait_until("the new worker does not serve", lambda: service.health(5)[0] == 200, 60)
        return f"replaced after its probes failed; all served after {load.wait_for_all():.1f} s"
    wait_until("calls are served by a stopped worker", lambda: service.health(1)[0] == 0)
    os.kill(worker, signal.SIGCONT)
    took = load.wait_for_all()
    assert service.worker() == worker, "the worker did not survive"
    return f"calls waited, and were served {took:.1f} s after SIGCONT (`serve` has no supervisor)"


def supervisor(context):
    """The worker ends with its supervisor; the next supervisor finds the sessions within their lease."""
    service, load, longest = context.service, context.load, 0.0
    if not service.supervised:
        return "SKIPPED: this program has no supervisor"
    client = Client(service)
    session = client.call("execute_code", code="value = 42")[0]["session_id"]
    for _ in range(context.rounds):
        client.close()
        time.sleep(random.uniform(0, MAX_RANDOM_SECONDS))
        orphan = service.worker()
        service.main.kill()
        service.main.wait()
        wait_until("the worker outlives its supervisor", lambda: not is_alive(orphan))
        service.start()
        longest = max(longest, load.wait_for_all())
        assert_state(client, session)
    client.close()
    ended = "the worker ended with it; no variable lost"
    return f"{context.rounds} killed, restarted by this script; {ended}; all served after {longest:.1f} s"


def hosted_server(context):
    service, client = context.service, Client(context.service)
    entry = {"name": "hosted", "command": "python3", "args": [str(HOSTED), "well"]}
    service.operator("POST", "/v1/servers", entry)
    is_connected = lambda: service.operator("GET", "/v1/servers/hosted")["status"] == "connected"
    wait_until("the hosted server does not connect", is_connected, 60)
    mark = f"{HOSTED.name}\0well\0"
    refused = 0
    for _ in range(context.rounds):
        find = lambda: [pid for pid in service.processes() if mark in text(f"/proc/{pid}/cmdline")]
        os.kill(random.choice(wait_until("the hosted server does not run", find)), signal.SIGKILL)

        def responds():
            nonlocal refused
            try:
                return not client.call("hosted__echo", message="x")[1]
            except Refused:
                refused += 1
                return False

        wait_until("the hosted server is not restarted", responds, 60)
    service.operator("DELETE", "/v1/servers/hosted")
    client.close()
    context.load.wait_for_all()
    return f"{context.rounds} killed and restarted; {refused} calls failed with a reason; other callers undisturbed"


FAULTS = {
    "kill -9 kernel": kill_one("kernel", kernels, loses_state=True),
    "kill -9 init": kill_one("init", inits, loses_state=True),
    "kill -9 zygote": kill_one("zygote", used_zygotes),
    "kill -9 launcher": kill_one("launcher", lambda service: service.launchers()),
    "kill -9 hosted server": hosted_server,
    "kill -9 worker": worker,
    "kill -9 supervisor": supervisor,
    "SIGSTOP worker": stopped_worker,
}
