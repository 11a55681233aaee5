"""Drives kernel.sh as the host does: over a socket, with its output on a pipe."""

import os
import signal
import socket
import subprocess
import time
import unittest

KERNEL = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "kernel.sh")
START = f"exec bash --noprofile --rcfile {KERNEL} --noediting -i <&3 251>&2 2>/dev/null"
RUN = b'eval "$__rf_code" </dev/null 250>&-\n'


class Shell(unittest.TestCase):
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
        self.socket.sendall(b"%d %d\n" % (self.last, len(code)) + code + RUN)

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
        self.interrupt()
        status, printed = self.answer()
        self.assertEqual(status, 130)
        self.assertNotIn("not reached", printed)

    def test_variables_functions_aliases_and_the_directory_stay(self):
        self.run_code("x=5; declare -a list=(1 2); f() { echo in f; }; alias a='echo aliased'; cd /")
        self.assertEqual(self.run_code("echo $x ${list[1]} $PWD; f; a"), (0, "5 2 /\nin f\naliased\n"))

    def test_code_is_counted_in_bytes(self):
        self.assertEqual(self.run_code("echo ü"), (0, "ü\n"))
        self.assertEqual(self.run_code("echo after"), (0, "after\n"))

    def test_the_status_is_that_of_the_last_command(self):
        self.assertEqual(self.run_code("false"), (1, ""))
        self.assertEqual(self.run_code("(exit 7)"), (7, ""))

    def test_exit_leaves_the_code_and_not_the_shell(self):
        self.run_code("x=5")
        self.assertEqual(self.run_code("f() { exit 4; }; f; echo no"), (4, ""))
        self.assertEqual(self.run_code("exit 300; echo no"), (44, ""))
        self.assertEqual(self.run_code("echo $x"), (0, "5\n"))

    def test_errors_of_expansion_leave_the_code_and_not_the_shell(self):
        status, printed = self.run_code("x=5; set -u; echo $nope; echo no")
        self.assertEqual((status, "unbound" in printed, "no\n" in printed), (1, True, False))
        self.assertEqual(self.run_code("echo $x ${nope:?gone}")[0], 1)
        self.assertEqual(self.run_code("set +u; echo $x"), (0, "5\n"))

    def test_an_interrupt_ends_a_command_a_loop_and_a_function(self):
        self.run_code("x=5")
        self.interrupted("sleep 100")
        self.interrupted("while :; do :; done")
        self.interrupted("f() { while :; do :; done; }; f")
        self.assertEqual(self.run_code("echo $x"), (0, "5\n"))

    def test_interrupts_between_requests_are_nothing(self):
        for _ in range(20):
            self.interrupt()
        self.assertEqual(self.run_code("echo fine"), (0, "fine\n"))

    def test_there_is_no_input_and_no_control_channel(self):
        self.assertEqual(self.run_code("cat; read line; echo [$line]"), (0, "[]\n"))
        self.assertEqual(self.run_code("ls /proc/self/fd | tr '\\n' ' '"), (0, "0 1 2 3 "))  # 3 is the listing itself

    def test_several_lines_and_here_documents(self):
        code = "for i in 1 2; do\n  echo $i\ndone\ncat <<END\nhere\nEND"
        self.assertEqual(self.run_code(code), (0, "1\n2\nhere\n"))

    def test_a_syntax_error_is_told(self):
        status, printed = self.run_code("if")
        self.assertEqual((status, "syntax error" in printed), (2, True))
        self.assertEqual(self.run_code("echo after"), (0, "after\n"))

    def test_jobs_run_on(self):
        self.assertEqual(self.run_code("sleep 100 & echo started")[0], 0)
        self.assertIn("sleep 100", self.run_code("jobs")[1])

    def test_set_e_ends_the_shell(self):
        self.assertIsNone(self.run_code("set -e; false; echo no"))
        self.assertEqual(self.process.wait(), 1)

    def test_the_end_of_the_host_is_its_end(self):
        self.socket.shutdown(socket.SHUT_RDWR)
        self.process.wait(timeout=20)


if __name__ == "__main__":
    unittest.main()
