"""A host for tests of the Python kernel: starts the real kernel and exchanges frames with it. Every wait has a timeout."""

import importlib.util
import json
import os
import select
import signal
import socket
import subprocess
import sys
import textwrap
import time
import unittest

KERNEL = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "python", "kernel.py")
WITHOUT_SITE = ("env", "HOME=/nonexistent", sys.executable, "-I", "-S", KERNEL)  # as a cold kernel is started
TIMEOUT_S = 60
HTML_BIT = 1 << 60
MAX_FRAME_BYTES = 12 << 20  # of the host: MAX_FRAME_BYTES in crates/guest/src/protocol/decode.rs
NO_INPUT = "input() is not available in this sandbox: pass values in the code"


def needs(*modules):
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    return unittest.skipIf(missing, f"not installed: {', '.join(missing)}")


def request(cell, code):
    return cell.to_bytes(8, "big") + code.encode()


class Host:
    """A kernel process, its socket, and the pipes of its descriptors 1 and 2."""

    def __init__(self, command=(sys.executable, "-I", KERNEL), cwd=None, first=None):
        self.socket, guest = socket.socketpair()
        self.socket.settimeout(TIMEOUT_S)
        out, out_guest = os.pipe()
        err, err_guest = os.pipe()
        self.pipes = {out: bytearray(), err: bytearray()}
        self.out, self.err = out, err
        for fd in self.pipes:
            os.set_blocking(fd, False)
        self.process = subprocess.Popen(
            [*command, str(guest.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=out_guest,
            stderr=err_guest,
            pass_fds=[guest.fileno()],
            start_new_session=True,
            cwd=cwd,
        )
        guest.close()
        os.close(out_guest)
        os.close(err_guest)
        self.received = bytearray()
        self.cells = 0
        self.wants_html = False
        self.finished = {}  # output of the last cell, by descriptor
        if first is not None:
            self.send(first)

    def close(self):
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait(TIMEOUT_S)
        self.socket.close()
        for fd in self.pipes:
            os.close(fd)

    def pump(self, deadline):
        """Waits for bytes and reads them; returns False once the kernel has closed its socket."""
        wait_s = max(0, deadline - time.monotonic())
        ready, _, _ = select.select([self.socket, *self.pipes], [], [], wait_s)
        if not ready:
            raise AssertionError(f"timeout; received {self.text(self.out)!r}, {self.text(self.err)!r}")
        self.drain()
        if self.socket in ready:
            try:
                part = self.socket.recv(1 << 20)
            except ConnectionError:
                part = b""
            self.received += part
            return bool(part)
        return True

    def drain(self):
        for fd, received in self.pipes.items():
            try:
                for part in iter(lambda: os.read(fd, 1 << 20), b""):
                    received += part
            except BlockingIOError:
                pass

    def frame(self):
        """Returns the next frame; None at the end of the stream."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            size = int.from_bytes(self.received[:4], "big")
            if len(self.received) >= 4 + size and len(self.received) >= 4:
                body = bytes(self.received[4 : 4 + size])
                del self.received[: 4 + size]
                return self.parse_frame(body)
            if not self.pump(deadline):
                return None

    def parse_frame(self, body):
        """Parses a frame as strictly as the host: limited in size, without lone surrogates."""
        if len(body) > MAX_FRAME_BYTES:
            raise AssertionError(f"a frame of {len(body)} bytes")
        frame = json.loads(body.decode(), parse_constant=self.refuse_constant)
        json.dumps(frame, ensure_ascii=False).encode()
        return frame

    @staticmethod
    def refuse_constant(name):
        raise AssertionError(f"{name} is not JSON")

    def send(self, body):
        self.socket.sendall(len(body).to_bytes(4, "big") + body)

    def start(self, code):
        self.cells += 1
        self.finished = {}
        bits = HTML_BIT if self.wants_html else 0
        self.send(request(100 + self.cells | bits, textwrap.dedent(code)))

    def finish(self):
        """Returns the `done` of the started cell, and what it has displayed and printed."""
        shown = []
        while True:
            frame = self.frame()
            if frame is None:
                raise AssertionError(f"the kernel ended: {self.text(self.err)}")
            if frame["id"] != 100 + self.cells:
                raise AssertionError(f"frame of another cell: {frame}")
            if frame["type"] == "done":
                break
            shown += frame["items"]
        self.drain()
        cell = Cell(frame, shown, self.text(self.out), self.text(self.err))
        self.finished = {fd: bytes(received) for fd, received in self.pipes.items()}
        for received in self.pipes.values():
            received.clear()
        return cell

    def run(self, code):
        self.start(code)
        return self.finish()

    def await_output(self, text, fd=None):
        """Waits for output of the running cell, or of the last one and of what goes on after it."""
        fd = fd or self.out
        deadline = time.monotonic() + TIMEOUT_S
        while text not in self.finished.get(fd, b"").decode(errors="replace") + self.text(fd):
            self.pump(deadline)

    def interrupt(self):
        os.kill(self.process.pid, signal.SIGINT)

    def text(self, fd):
        return self.pipes[fd].decode(errors="replace")


class Cell:
    def __init__(self, done, shown, stdout, stderr):
        self.status, self.result, self.error = done["status"], done["result"], done["error"]
        self.keys, self.cut = sorted(done), done.get("cut")
        self.shown, self.stdout, self.stderr = shown, stdout, stderr

    @property
    def traceback(self):
        """The traceback without lines of carets, which differ between versions of Python."""
        lines = self.error["traceback"].splitlines(keepends=True)
        return "".join(line for line in lines if line == "\n" or line.strip(" ~^\n"))


class KernelTest(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        self.host = self.new_host()

    def new_host(self, *args, **kwargs):
        host = Host(*args, **kwargs)
        self.addCleanup(host.close)
        self.ready = host.frame()
        return host

    def run_cell(self, code):
        return self.host.run(code)

    def run_ok(self, code):
        cell = self.run_cell(code)
        self.assertEqual((cell.status, cell.error), ("ok", None))
        return cell

    def show(self, code):
        return self.run_ok(code).shown

    def run_error(self, code, name):
        cell = self.run_cell(code)
        self.assertEqual((cell.status, cell.error and cell.error["name"]), ("error", name))
        return cell
