"""A running ringfence with its own state directory, and a client for it."""

import http.client
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import tempfile

from host import MARK, descendants, is_alive, sandbox_groups, text, wait_until


class Refused(Exception):
    """The server returned an error with its reason."""


class Disconnected(Exception):
    """The connection ended without a response."""


class Service:
    # Control groups of all sandboxes that were ever seen.
    groups = set()

    def __init__(self, program, supervised=False, wrapper=(), state=None, **settings):
        self.program, self.supervised, self.wrapper = program, supervised, list(wrapper)
        self.directory = None if state else tempfile.TemporaryDirectory(prefix=MARK)
        self.state = state or self.directory.name
        self.environment = {**os.environ, "RINGFENCE_STATE_DIR": self.state, "RINGFENCE_SESSIONS_LEASE_S": "20"}
        self.environment |= {f"RINGFENCE_{key.upper()}": str(value) for key, value in settings.items()}
        self.log_file = tempfile.TemporaryFile("w+")
        self.port = 0
        self.start()

    def start(self):
        before = len(self.log())
        # More restarts than there are faults: ringfence gives up after the last one.
        role = ["up", "--max-restarts", "1000"] if self.supervised else ["serve"]
        command = [*self.wrapper, self.program, *role, "--port", str(self.port)]
        self.main = subprocess.Popen(
            command, env=self.environment, stdin=subprocess.DEVNULL, stdout=self.log_file, stderr=self.log_file
        )
        address = re.compile(r"http://127\.0\.0\.1:(\d+)/mcp")
        try:
            wait_until(
                "the server does not log its address",
                lambda: self.main.poll() is not None or address.search(self.log()[before:]),
                60,
            )
            assert self.main.poll() is None, "the server does not start"
        except BaseException as error:
            log = self.log()[before:][-500:]
            self.stop()
            raise AssertionError(f"{error}: {log}") if isinstance(error, AssertionError) else error
        self.port = int(address.search(self.log()[before:]).group(1))

    def log(self):
        self.log_file.seek(0)
        return self.log_file.read()

    def processes(self):
        """Returns all processes of the server, also those that have outlived an earlier one."""
        mark = f"RINGFENCE_STATE_DIR={self.state}\0"
        marked = {pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if mark in text(f"/proc/{pid}/environ")}
        found = descendants(({self.main.pid} | marked) - {os.getpid()}) - {os.getpid()}
        for pid in found:
            Service.groups |= sandbox_groups(pid)
        return found

    def role(self, pid):
        return text(f"/proc/{pid}/cmdline").split("\0")[1:2]

    def worker(self):
        """Returns the process that serves."""
        role = ["worker" if self.supervised else "serve"]
        serving = [pid for pid in self.processes() if self.role(pid) == role and is_alive(pid)]
        return serving[0] if serving else None

    def launchers(self):
        return [pid for pid in self.processes() if self.role(pid) == ["launcher"] and is_alive(pid)]

    def revive(self, seconds=60):
        """Waits until the server works again; restarts it if it has no supervisor."""
        if not self.supervised:
            wait_until("the killed server is still running", lambda: self.main.poll() is not None)
            self.start()
        wait_until("the server does not work again", lambda: self.health(5)[0] == 200, seconds)

    def health(self, seconds=10):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=seconds)
        try:
            connection.request("GET", "/health")
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            return 0, {"reason": f"{type(error).__name__}: {error}"}
        finally:
            connection.close()

    def operator(self, method, path, body=None):
        """Sends a request to the operator socket. Killed servers leave theirs behind."""
        for socket_path in pathlib.Path(self.state).glob("servers/*.sock"):
            with socket.socket(socket.AF_UNIX) as stream:
                stream.settimeout(30)
                try:
                    stream.connect(str(socket_path))
                except OSError:
                    continue
                body = json.dumps(body or {})
                head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
                stream.sendall((head + body).encode())
                response = b"".join(iter(lambda: stream.recv(65536), b""))
                return json.loads(response.partition(b"\r\n\r\n")[2])
        raise AssertionError("no server listens on an operator socket")

    def kill(self):
        """Kills the server only; its sandboxes continue until the end of their lease."""
        os.kill(self.worker(), signal.SIGKILL)

    def kill_processes(self, processes=frozenset()):
        """Kills all processes of the server."""
        for pid in filter(is_alive, processes | self.processes()):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def stop(self):
        """Stops the server; raises AssertionError if one of its processes is left."""
        processes = self.processes()
        if self.main.poll() is None:
            for target in {self.main.pid, self.worker() or self.main.pid}:
                if is_alive(target):
                    os.kill(target, signal.SIGCONT)
            # The wrapper does not forward signals.
            is_wrapped = self.wrapper and not self.supervised
            target = (self.worker() if is_wrapped else None) or self.main.pid
            os.kill(target, signal.SIGTERM if self.supervised else signal.SIGINT)
            try:
                self.main.wait(40)
            except subprocess.TimeoutExpired:
                self.main.kill()
                self.main.wait()
        processes |= self.processes()
        try:
            wait_until("", lambda: not any(map(is_alive, processes - {self.main.pid})), 40)
        except AssertionError:
            left = [f"{pid} {text(f'/proc/{pid}/cmdline')[:60]!r}" for pid in processes if is_alive(pid)]
            self.kill_processes(processes)
            raise AssertionError(f"processes are left: {left}") from None
        finally:
            self.log_file.close()
            if self.directory:
                self.directory.cleanup()


class Client:
    """A client with one connection, which is opened again after it has failed."""

    def __init__(self, service, seconds=40):
        self.connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=seconds)

    def call(self, tool, **arguments):
        """Calls a tool; returns its structured content, whether it is an error, and its text."""
        params = {"name": tool, "arguments": arguments}
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
        try:
            self.connection.request("POST", "/mcp", body, {"Content-Type": "application/json"})
            response = json.loads(self.connection.getresponse().read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            raise Disconnected(f"{type(error).__name__}: {error}") from None
        if "result" not in response:
            # An error before the request is parsed is not in the form of JSON-RPC.
            error = response.get("error")
            raise Refused(error.get("message", str(response)) if isinstance(error, dict) else str(error))
        result = response["result"]
        content = " ".join(item.get("text", "") for item in result.get("content", []))
        return result.get("structuredContent") or {}, bool(result.get("isError")), content

    def close(self):
        self.connection.close()
