"""The Python kernel as a process: descriptors, waiting, forked children."""

import subprocess
import sys
import time

from kernel_host import KERNEL, TIMEOUT_S, KernelTest


class DescriptorTest(KernelTest):
    def test_closed_descriptors_are_reopened(self):
        self.run_ok("import os, sys")
        for code in ("os.close(1)", "os.close(2)", "os.close(0)", "os.closerange(0, 3)"):
            with self.subTest(code=code):
                self.run_ok(code)
                cell = self.run_ok("_ = os.system('echo out; echo err >&2; cat')")
                self.assertEqual((cell.stdout, cell.stderr), ("out\n", "err\n"))
                cell = self.run_ok("print('a'); print('b', file=sys.stderr)")
                self.assertEqual((cell.stdout, cell.stderr), ("a\n", "b\n"))

    def test_file_opened_on_a_closed_descriptor_is_replaced(self):
        self.run_ok("import os; os.close(1); f = open('/dev/null', 'w')")
        self.assertEqual(self.run_ok("print('a')").stdout, "a\n")

    def test_replaced_and_closed_streams_are_restored(self):
        self.run_ok("import io, sys")
        breakers = [
            "sys.stdout = io.StringIO(); sys.stderr = None",
            "sys.stdout.close(); sys.stderr.close()",
            "x = sys.stdout.detach(); y = sys.stderr.detach()",
            "sys.stdout = io.TextIOWrapper(sys.stdout.buffer)",
            "del sys.stdout, sys.stderr",
        ]
        for code in breakers:
            with self.subTest(code=code):
                self.run_ok(code)
                cell = self.run_ok("print('a'); print('b', file=sys.stderr)")
                self.assertEqual((cell.stdout, cell.stderr), ("a\n", "b\n"))

    def test_stream_that_cannot_be_flushed_is_ignored(self):
        self.run_ok("import sys\nclass Odd:\n def write(self, text): pass\n def flush(self): raise what")
        for what in ("SystemExit", "ValueError", "GeneratorExit"):
            self.run_ok(f"what = {what}; sys.stdout = Odd()")
        self.assertEqual(self.run_cell("what = KeyboardInterrupt; sys.stdout = Odd()").status, "interrupted")
        self.assertEqual(self.run_ok("print(1)").stdout, "1\n")

    def test_nonblocking_pipe_is_made_blocking(self):
        self.run_ok("import os; os.set_blocking(1, False)")
        self.assertEqual(len(self.run_ok("print('x' * 1_000_000)").stdout), 1_000_001)

    def test_pipe_made_nonblocking_by_a_child_is_made_blocking(self):
        child = "import os; input(); os.set_blocking(1, False); print('done', flush=True)"
        self.run_ok("import subprocess, sys")
        self.run_ok(f"child = subprocess.Popen([sys.executable, '-c', {child!r}], stdin=subprocess.PIPE)")
        cell = self.run_ok("_ = child.stdin.write(b'\\n'); child.stdin.close()")
        # A fast child prints while the cell still runs.
        if "done" not in cell.stdout:
            self.host.await_output("done")
        self.assertEqual(self.run_ok("import os; os.get_blocking(1)").result, "True")

    def test_descriptors_changed_between_cells_are_restored(self):
        breakers = [
            "threading.Thread(target=lambda: (time.sleep(0.1), os.dup2(0, 1), os.write(2, b'go'))).start()",
            "threading.Thread(target=lambda: (time.sleep(0.1), os.set_blocking(1, False), os.close(1), os.write(2, b'go'))).start()",
            "signal.signal(signal.SIGALRM, lambda *_: (os.close(1), os.write(2, b'go'))); signal.setitimer(0, 0.1)",
        ]
        self.run_ok("import os, signal, threading, time")
        for code in breakers:
            with self.subTest(code=code):
                self.run_ok(code)
                self.host.await_output("go", self.host.err)
                self.assertEqual(self.run_ok("print('a', os.get_blocking(1))").stdout, "a True\n")


class WaitTest(KernelTest):
    def switches(self):
        """Returns how often the kernel has blocked; None if it is not blocked now."""
        with open(f"/proc/{self.host.process.pid}/status", encoding="ascii") as file:
            status = dict(line.split(":", 1) for line in file)
        if status["State"].split()[0] != "S":
            return None
        return int(status["voluntary_ctxt_switches"])

    def switches_when_idle(self):
        deadline = time.monotonic() + TIMEOUT_S
        seen = None
        while time.monotonic() < deadline:
            time.sleep(0.05)
            seen, before = self.switches(), seen
            if seen is not None and seen == before:
                return seen
        raise AssertionError("the kernel does not become idle")

    def test_kernel_is_not_woken_when_its_response_is_read(self):
        for flags, first in (("-I", "x = 1"), ("-IS", "x = 1"), ("-IS", "import os; x = 1")):
            self.host = self.new_host((sys.executable, flags, KERNEL))
            self.run_ok(first)
            for _ in range(3):
                self.host.start("x += 1")
                switches = self.switches_when_idle()  # `done` is sent and not read yet
                self.assertEqual(self.host.finish().status, "ok")
                self.assertEqual(self.switches_when_idle(), switches)

    def test_imports_of_the_kernel_do_not_change_the_path_of_threads(self):
        for flags in ("-I", "-IS"):
            self.host = self.new_host((sys.executable, flags, KERNEL))
            self.run_ok(
                """
                import _thread, sys
                def watch():
                    while not stop: seen.add(id(sys.path))
                stop, seen = [], {id(sys.path)}
                started = _thread.start_new_thread(watch, ())
                """
            )
            self.run_error("raise ValueError", "ValueError")
            self.assertEqual(self.run_ok("stop.append(1); len(seen)").result, "1")


class ForkTest(KernelTest):
    def test_child_at_the_end_of_its_cell_sends_nothing(self):
        cell = self.run_ok(
            """
            import os
            pid = os.fork()
            if pid:
                status = os.waitpid(pid, 0)[1]
            else:
                display('from the child')
            print('child' if pid == 0 else status)
            pid == 0
            """
        )
        self.assertEqual((cell.stdout, cell.result, cell.shown), ("child\n0\n", "False", []))
        self.assertEqual(self.run_ok("1").result, "1")

    def test_failing_child_prints_its_traceback_and_ends(self):
        self.run_ok("import os, sys")
        cell = self.run_ok("pid = os.fork()\nif not pid: raise ValueError('x')\nos.waitpid(pid, 0)[1] >> 8")
        self.assertEqual(cell.result, "1")
        self.assertIn("ValueError: x\n", cell.stderr)
        cell = self.run_ok("pid = os.fork()\nif not pid: sys.exit(3)\nos.waitpid(pid, 0)[1] >> 8")
        self.assertEqual(cell.result, "3")

    def test_exiting_child_prints_what_the_interpreter_would(self):
        self.run_ok("import os, sys")
        for given in ["", "None", "0", "3", "True", "'gone'", "'1'", "''", "['a', 1]"]:
            with self.subTest(given):
                command = [sys.executable, "-c", f"import sys; sys.exit({given})"]
                script = subprocess.run(command, capture_output=True, text=True)
                cell = self.run_ok(f"pid = os.fork()\nif not pid: sys.exit({given})\nos.waitpid(pid, 0)[1] >> 8")
                self.assertEqual((cell.result, cell.stderr), (str(script.returncode), script.stderr))

    def test_child_does_not_keep_the_socket_open(self):
        self.run_ok("import os, time\nif os.fork() == 0: time.sleep(1000)")
        self.host.start("os._exit(0)")
        self.assertIsNone(self.host.frame())

    def test_multiprocessing_works(self):
        self.run_ok("import multiprocessing; fork = multiprocessing.get_context('fork')")
        self.run_ok("def f(x):\n display(x)\n return x * 2")
        cell = self.run_ok("with fork.Pool(2) as pool: doubled = pool.map(f, [1, 2])\ndoubled")
        self.assertEqual((cell.result, cell.shown), ("[2, 4]", []))
        spawned = "p = multiprocessing.get_context('spawn').Process(target=print, args=(2,))"
        cell = self.run_ok(f"{spawned}; print(1, end=''); p.start(); p.join(); p.exitcode")
        self.assertEqual((cell.result, cell.stdout, cell.stderr), ("0", "12\n", ""))
