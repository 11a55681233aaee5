"""Callers that work all the time, each in its own session with its own secret, and notice what is wrong."""

import collections
import random
import secrets
import threading
import time

from host import MARK
from service import Broken, Client, Told


def tells_of_loss(said):
    return any(words in said for words in ("is lost", "are lost", "a new one took its place"))


class Caller(threading.Thread):
    def __init__(self, service, template="python"):
        super().__init__(daemon=True)
        self.service, self.template = service, template
        self.secret, self.session, self.count = secrets.token_hex(8), None, 0
        self.begin = f"secret = '{self.secret}'; n = 0"
        self.seen, self.said, self.wrong = collections.Counter(), {}, []
        self.knows_of_loss = False
        self.last_fine, self.ending = 0.0, threading.Event()

    def run(self):
        client = Client(self.service)
        while not self.ending.is_set():
            try:
                self.step(client)
            except Told as told:
                self.note("told", str(told))
                self.knows_of_loss |= tells_of_loss(str(told))
                if "session not found" in str(told):
                    self.session = None
                time.sleep(0.2)
            except Broken as broken:
                self.note("broken", str(broken))
                if "ConnectionRefused" in str(broken):
                    self.note("refused", str(broken))
                time.sleep(0.2)
        client.close()

    def step(self, client):
        if self.session is None:
            made, _, _ = client.call("execute_code", code=f"open('{MARK}', 'w'); {self.begin}")
            self.session, self.count, self.knows_of_loss = made["session_id"], 0, False
            return
        code = "n += 1; print(secret, n)"
        answer, is_error, said = client.call("execute_code", code=code, session_id=self.session)
        if is_error or answer.get("status") != "ok":
            self.note("told", said)
            self.knows_of_loss |= tells_of_loss(said)
            if "NameError" in answer.get("stderr", "") and not self.knows_of_loss:
                self.wrong.append(f"its state is gone, and nobody said so: {said[:200]!r}")
            # It begins anew in the same session.
            client.call("execute_code", code=f"open('{MARK}', 'w'); {self.begin}", session_id=self.session)
            self.count, self.knows_of_loss = 0, False
            return
        secret, count = answer["stdout"].split()
        # A call whose answer was lost may have run, so that it may have counted further.
        if secret != self.secret or int(count) <= self.count:
            self.wrong.append(f"{answer['stdout']!r} instead of {self.secret} {self.count + 1}")
        self.count, self.last_fine = int(count), time.monotonic()
        self.seen["fine"] += 1

    def note(self, kind, said):
        self.seen[kind] += 1
        self.said[kind] = said


class Load:
    """Several callers."""

    def __init__(self, service, callers):
        self.callers = [Caller(service) for _ in range(callers)]
        for caller in self.callers:
            caller.start()
        self.settle()

    def settle(self, seconds=60):
        """Waits until every caller is served again."""
        since, deadline = time.monotonic(), time.monotonic() + seconds
        while not all(caller.last_fine > since for caller in self.callers):
            if time.monotonic() > deadline:
                late = next(caller for caller in self.callers if caller.last_fine <= since)
                raise AssertionError(f"a caller is not served again: {late.said}")
            time.sleep(0.05)
        return time.monotonic() - since

    def total(self):
        return sum((caller.seen for caller in self.callers), collections.Counter())

    def check(self):
        wrong = [wrong for caller in self.callers for wrong in caller.wrong]
        assert not wrong, f"an answer is another's, or old, or does not say what was lost: {wrong[:3]}"

    def any_session(self):
        return random.choice([caller.session for caller in self.callers if caller.session])

    def end(self, seconds=60):
        deadline = time.monotonic() + seconds
        for caller in self.callers:
            caller.ending.set()
        for caller in self.callers:
            caller.join(max(0, deadline - time.monotonic()))
        self.check()
