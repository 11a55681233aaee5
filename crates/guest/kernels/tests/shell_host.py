"""Runs the bash kernel as the host does: with a socket, and its output on a pipe."""

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
        self.socket, guest = socket.socketpair()
        self.socket.settimeout(20)
        output, write_end = os.pipe()
        self.output = open(output, "rb", buffering=0)
        os.set_blocking(output, False)
        fd = guest.fileno()
        move = f"exec 3<&{fd} {fd}<&-; " if fd != 3 else ""
        # Without ignored signals, as in a sandbox: a shell cannot handle a signal that was ignored at its start.
        command = ["env", "--default-signal", "bash", "--norc", "--noprofile", "-c", move + START]
        self.process = subprocess.Popen(
            command,
            pass_fds=[fd],
            stdin=subprocess.DEVNULL,
            stdout=write_end,
            stderr=write_end,
            start_new_session=True,
        )
        guest.close()
        os.close(write_end)
        self.addCleanup(self.end)
        self.received = b""
        self.last = 0
        self.assertEqual(self.line().split()[0], "ready")

    def end(self):
        # The whole process group, so that no process outlives its test.
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

    def reply(self):
        """Returns the status and the output."""
        reply = self.line()
        if reply is None:
            return None
        number, status = reply.split()
        self.assertEqual(int(number), self.last)
        return int(status), (self.output.read() or b"").decode()

    def run_code(self, code):
        self.send(code)
        return self.reply()

    def interrupt(self):
        os.killpg(self.process.pid, signal.SIGINT)

    def assert_interrupted(self, code):
        self.send(f"echo started; {code}; echo not reached")
        while not self.output.read():
            time.sleep(0.01)
        # bash loses an interrupt between its check for interrupts and the start of the next child.
        time.sleep(0.05)
        self.interrupt()
        status, printed = self.reply()
        self.assertEqual(status, 130)
        self.assertNotIn("not reached", printed)

    def file(self, text):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        path = os.path.join(directory.name, "file")
        with open(path, "w") as file:
            file.write(text)
        return path
