"""A ringfence as somebody runs it, with a state directory of its own, and a client of it."""

import http.client
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import tempfile

from host import MARK, descendants, eventually, is_alive, own_groups, text


class Told(Exception):
    """The server said no, and why."""


class Broken(Exception):
    """The conversation ended without an answer."""


class Service:
    groups = set()

    def __init__(self, program, supervised=False, wrapper=(), state=None, **settings):
        self.program, self.supervised, self.wrapper = program, supervised, list(wrapper)
        self.kept = None if state else tempfile.TemporaryDirectory(prefix=MARK)
        self.state = state or self.kept.name
        self.environment = {**os.environ, "RINGFENCE_STATE_DIR": self.state, "RINGFENCE_SESSIONS_LEASE_S": "20"}
        self.environment |= {f"RINGFENCE_{key.upper()}": str(value) for key, value in settings.items()}
        self.log = tempfile.TemporaryFile("w+")
        self.port = 0
        self.start()

    def start(self):
        before = len(self.said())
        # As many restarts as there may be faults: when they are used up, it ends as it should.
        role = ["up", "--max-restarts", "1000"] if self.supervised else ["serve"]
        command = [*self.wrapper, self.program, *role, "--port", str(self.port)]
        self.main = subprocess.Popen(
            command, env=self.environment, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log
        )
        address = re.compile(r"http://127\.0\.0\.1:(\d+)/mcp")
        ready = lambda: self.main.poll() is not None or address.search(self.said()[before:])
        try:
            eventually("it does not say where it listens", ready, 60)
            assert self.main.poll() is None, "it does not start"
        except BaseException as error:
            said = self.said()[before:][-500:]
            self.stop()
            raise AssertionError(f"{error}: {said}") if isinstance(error, AssertionError) else error
        self.port = int(address.search(self.said()[before:]).group(1))

    def said(self):
        self.log.seek(0)
        return self.log.read()

    def family(self):
        """All processes that belong to it, those too whose server has died."""
        mark = f"RINGFENCE_STATE_DIR={self.state}\0"
        mine = {pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if mark in text(f"/proc/{pid}/environ")}
        found = descendants(({self.main.pid} | mine) - {os.getpid()}) - {os.getpid()}
        for pid in found:
            Service.groups |= own_groups(pid)
        return found

    def role(self, pid):
        return text(f"/proc/{pid}/cmdline").split("\0")[1:2]

    def worker(self):
        """The process that serves."""
        role = ["worker" if self.supervised else "serve"]
        serving = [pid for pid in self.family() if self.role(pid) == role and is_alive(pid)]
        return serving[0] if serving else None

    def launchers(self):
        return [pid for pid in self.family() if self.role(pid) == ["launcher"] and is_alive(pid)]

    def revive(self, seconds=60):
        """Makes sure that it serves again: a supervisor does so by itself, else somebody starts it."""
        if not self.supervised:
            eventually("the dead server lives", lambda: self.main.poll() is not None)
            self.start()
        eventually("it does not serve again", lambda: self.health(5)[0] == 200, seconds)

    def health(self, seconds=10):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=seconds)
        try:
            connection.request("GET", "/health")
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            return 0, {"reason": f"{type(error).__name__}: {error}"}
        finally:
            connection.close()

    def operator(self, method, path, body=None):
        """Asks over the socket of whoever runs it. Dead servers leave theirs."""
        for path_of_socket in pathlib.Path(self.state).glob("servers/*.sock"):
            with socket.socket(socket.AF_UNIX) as stream:
                stream.settimeout(30)
                try:
                    stream.connect(str(path_of_socket))
                except OSError:
                    continue
                body = json.dumps(body or {})
                head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
                stream.sendall((head + body).encode())
                answer = b"".join(iter(lambda: stream.recv(65536), b""))
                return json.loads(answer.partition(b"\r\n\r\n")[2])
        raise AssertionError("no server listens for its operator")

    def kill(self):
        """Kills the server alone; its sandboxes stay for the length of their lease."""
        os.kill(self.worker(), signal.SIGKILL)

    def kill_family(self, family=frozenset()):
        """All that is left, at once."""
        for pid in filter(is_alive, family | self.family()):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def stop(self):
        """Ends it in order, and makes sure that nothing of it is left."""
        family = self.family()
        if self.main.poll() is None:
            for target in {self.main.pid, self.worker() or self.main.pid}:
                if is_alive(target):
                    os.kill(target, signal.SIGCONT)
            # What it may be wrapped in passes no signal on.
            is_wrapped = self.wrapper and not self.supervised
            target = (self.worker() if is_wrapped else None) or self.main.pid
            os.kill(target, signal.SIGTERM if self.supervised else signal.SIGINT)
            try:
                self.main.wait(40)
            except subprocess.TimeoutExpired:
                self.main.kill()
                self.main.wait()
        family |= self.family()
        try:
            eventually("", lambda: not any(map(is_alive, family - {self.main.pid})), 40)
        except AssertionError:
            left = [f"{pid} {text(f'/proc/{pid}/cmdline')[:60]!r}" for pid in family if is_alive(pid)]
            self.kill_family(family)
            raise AssertionError(f"processes are left: {left}") from None
        finally:
            self.log.close()
            if self.kept:
                self.kept.cleanup()


class Client:
    """One caller with a connection of its own, opened again when it breaks."""

    def __init__(self, service, seconds=40):
        self.connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=seconds)

    def call(self, tool, **arguments):
        params = {"name": tool, "arguments": arguments}
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
        try:
            self.connection.request("POST", "/mcp", body, {"Content-Type": "application/json"})
            answer = json.loads(self.connection.getresponse().read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            raise Broken(f"{type(error).__name__}: {error}") from None
        if "result" not in answer:
            # What is said before a request is known has no id, and is not in the words of MCP.
            error = answer.get("error")
            raise Told(error.get("message", str(answer)) if isinstance(error, dict) else str(error))
        result = answer["result"]
        said = " ".join(item.get("text", "") for item in result.get("content", []))
        return result.get("structuredContent") or {}, bool(result.get("isError")), said

    def close(self):
        self.connection.close()
