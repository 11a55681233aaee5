"""Drives kernel.sh as the host does: over a socket, with its output on a pipe."""

import os
import signal
import socket
import subprocess
import tempfile
import time
import unittest

KERNEL = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "bash", "kernel.sh")
START = f"exec bash --noprofile --rcfile {KERNEL} --noediting -i <&3 3<&- 252>&2 2<>/dev/null"


class ShellTest(unittest.TestCase):
    def setUp(self):
        ours, theirs = socket.socketpair()
        self.socket = ours
        self.socket.settimeout(20)
        output, write_end = os.pipe()
        self.output = open(output, "rb", buffering=0)
        os.set_blocking(output, False)
        fd = theirs.fileno()
        move = f"exec 3<&{fd} {fd}<&-; " if fd != 3 else ""
        # As a sandbox starts it: a shell cannot heed what it was started to ignore.
        command = ["env", "--default-signal", "bash", "--norc", "--noprofile", "-c", move + START]
        self.process = subprocess.Popen(
            command,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=write_end,
            stderr=write_end,
            start_new_session=True,
        )
        theirs.close()
        os.close(write_end)
        self.addCleanup(self.end)
        self.received = b""
        self.last = 0
        self.assertEqual(self.line().split()[0], "ready")

    def end(self):
        # The group too: what a test leaves behind must not outlive it.
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        self.socket.close()
        self.output.close()

    def line(self):
        while b"\n" not in self.received:
            part = self.socket.recv(4096)
            if not part:
                return None
            self.received += part
        line, self.received = self.received.split(b"\n", 1)
        return line.decode()

    def send(self, code):
        self.last += 1
        code = code.encode()
        self.socket.sendall(b"%d %d\n" % (self.last, len(code)) + code)

    def answer(self):
        """The status and what was printed."""
        answer = self.line()
        if answer is None:
            return None
        number, status = answer.split()
        self.assertEqual(int(number), self.last)
        return int(status), (self.output.read() or b"").decode()

    def run_code(self, code):
        self.send(code)
        return self.answer()

    def interrupt(self):
        os.killpg(self.process.pid, signal.SIGINT)

    def interrupted(self, code):
        self.send(f"echo begun; {code}; echo not reached")
        while not self.output.read():
            time.sleep(0.01)
        # bash loses what comes between its check for interrupts and the child that it starts next.
        time.sleep(0.05)
        self.interrupt()
        status, printed = self.answer()
        self.assertEqual(status, 130)
        self.assertNotIn("not reached", printed)

    def file(self, text):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        path = os.path.join(directory.name, "file")
        with open(path, "w") as file:
            file.write(text)
        return path
