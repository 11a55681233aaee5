"""Callers that work all the time, each in its own session with its own secret, and check every response."""

import collections
import secrets
import threading
import time

from host import MARK
from service import Client, Disconnected, Refused


def reports_loss(message):
    return any(words in message for words in ("is lost", "are lost", "a new one took its place"))


class Caller(threading.Thread):
    def __init__(self, service):
        super().__init__(daemon=True)
        self.service = service
        self.secret, self.session, self.count = secrets.token_hex(8), None, 0
        self.initial_code = f"open('{MARK}', 'w'); secret = '{self.secret}'; n = 0"
        self.results, self.last_messages, self.wrong = collections.Counter(), {}, []
        self.has_report_of_loss = False
        self.last_success, self.ending = 0.0, threading.Event()

    def run(self):
        client = Client(self.service)
        while not self.ending.is_set():
            try:
                self.step(client)
            except Refused as error:
                self.note("refused", str(error))
                self.has_report_of_loss |= reports_loss(str(error))
                if "session not found" in str(error):
                    self.session = None
                time.sleep(0.2)
            except Disconnected as error:
                self.note("disconnected", str(error))
                if "ConnectionRefused" in str(error):
                    self.note("connection refused", str(error))
                time.sleep(0.2)
        client.close()

    def step(self, client):
        if self.session is None:
            content, _, _ = client.call("execute_code", code=self.initial_code)
            self.session, self.count, self.has_report_of_loss = content["session_id"], 0, False
            return
        code = "n += 1; print(secret, n)"
        content, is_error, message = client.call("execute_code", code=code, session_id=self.session)
        if is_error or content.get("status") != "ok":
            self.note("refused", message)
            self.has_report_of_loss |= reports_loss(message)
            if "NameError" in content.get("stderr", "") and not self.has_report_of_loss:
                self.wrong.append(f"the state is lost without a report: {message[:200]!r}")
            # Starts again in the same session.
            client.call("execute_code", code=self.initial_code, session_id=self.session)
            self.count, self.has_report_of_loss = 0, False
            return
        secret, count = content["stdout"].split()
        # A call whose response was lost may have run, so the counter may have advanced by more than one.
        if secret != self.secret or int(count) <= self.count:
            self.wrong.append(f"{content['stdout']!r} instead of {self.secret} {self.count + 1}")
        self.count, self.last_success = int(count), time.monotonic()
        self.results["succeeded"] += 1

    def note(self, kind, message):
        self.results[kind] += 1
        self.last_messages[kind] = message


class Load:
    """Several callers."""

    def __init__(self, service, callers):
        self.callers = [Caller(service) for _ in range(callers)]
        for caller in self.callers:
            caller.start()
        self.wait_for_all()

    def wait_for_all(self, seconds=60):
        """Waits until every caller is served again; returns the time that this took."""
        since, deadline = time.monotonic(), time.monotonic() + seconds
        while not all(caller.last_success > since for caller in self.callers):
            if time.monotonic() > deadline:
                late = next(caller for caller in self.callers if caller.last_success <= since)
                raise AssertionError(f"a caller is not served again: {late.last_messages}")
            time.sleep(0.05)
        return time.monotonic() - since

    def total(self):
        return sum((caller.results for caller in self.callers), collections.Counter())

    def check(self):
        wrong = [wrong for caller in self.callers for wrong in caller.wrong]
        assert not wrong, f"wrong responses, or a loss without a report: {wrong[:3]}"

    def end(self, seconds=60):
        deadline = time.monotonic() + seconds
        for caller in self.callers:
            caller.ending.set()
        for caller in self.callers:
            caller.join(max(0, deadline - time.monotonic()))
        self.check()
