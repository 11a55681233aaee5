"""Tests of the kernel as a process: interrupts, descriptors, forked children, warm forks of a zygote."""

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

from kernel_host import DEADLINE_S, KERNEL, KernelTest, needs, request


class InterruptTest(KernelTest):
    def interrupt(self, code):
        """Runs a cell that prints `go`, and interrupts it then."""
        self.host.start(code)
        self.host.await_output("go")
        self.host.interrupt()
        return self.host.finish()

    def assert_interrupted(self, code):
        cell = self.interrupt(f"before = 1; print('go')\n{textwrap.dedent(code)}")
        self.assertEqual((cell.status, cell.error["name"]), ("interrupted", "KeyboardInterrupt"))
        self.assertEqual(self.run_ok("before").result, "1")
        return cell

    def test_in_sleep(self):
        cell = self.assert_interrupted("import time\ntime.sleep(1000)")
        frames = r"^Traceback.*\n  File \"<cell 1>\", line \d.*\n.*\nKeyboardInterrupt\n$"
        self.assertRegex(cell.traceback, frames)

    def test_in_a_busy_loop(self):
        self.assert_interrupted("while True: pass")

    def test_in_a_subprocess(self):
        self.assert_interrupted("import subprocess\nsubprocess.run(['sleep', '1000'])")

    def test_in_an_await(self):
        self.run_ok("import asyncio; cleaned = []")
        cell = self.interrupt(
            """
            asyncio.get_running_loop().call_later(0.01, print, 'go')  # from within the await
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                cleaned.append(1)
                raise
            """
        )
        self.assertEqual((cell.status, cell.error["name"]), ("interrupted", "KeyboardInterrupt"))
        self.assertEqual(cell.stderr, "")
        self.assertIn('File "<cell 2>", line 4', cell.error["traceback"])
        self.assertNotIn("kernel.py", cell.error["traceback"])
        self.assertEqual(self.run_ok("cleaned").result, "[1]")
        self.assertEqual(self.run_ok("await asyncio.sleep(0, 5)").result, "5")

    def test_in_a_forgotten_await(self):
        self.run_ok("import asyncio\nasync def f():\n  print('go')\n  await asyncio.sleep(1000)")
        self.run_ok("async def spin():\n  print('go')\n  while True: pass")
        for code in ("f()", "spin()"):
            with self.subTest(code=code):
                cell = self.interrupt(code)
                self.assertEqual((cell.status, cell.error["name"], cell.stderr), ("interrupted", "KeyboardInterrupt", ""))
                self.assertNotIn("kernel.py", cell.error["traceback"])

    def test_in_a_cell_that_starts_tasks(self):
        self.run_ok("import asyncio, time")
        cell = self.interrupt("t = asyncio.create_task(asyncio.sleep(0)); print('go'); time.sleep(1000)")
        self.assertEqual((cell.status, cell.stderr), ("interrupted", ""))
        self.assertEqual(self.run_ok("await t").stderr, "")

    def test_in_a_busy_coroutine(self):
        self.run_ok("import asyncio, gc")
        self.assert_interrupted("await asyncio.sleep(0)\nwhile True: pass")
        self.assertEqual(self.run_ok("await asyncio.sleep(0); gc.collect(); None").stderr, "")

    def test_in_the_event_loop_itself(self):
        self.run_ok("import asyncio")
        for _ in range(100):  # such a cell spends most of its time there
            cell = self.interrupt("print('go')\nwhile True: await asyncio.sleep(0)")
            self.assertEqual(cell.status, "interrupted")

    def test_in_the_event_loop_with_the_cell_next_in_line(self):
        self.run_ok("import asyncio, os, signal")
        cell = self.run_cell(
            """
            asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGINT)
            await asyncio.sleep(0)
            while True: pass
            """
        )
        self.assertEqual(cell.status, "interrupted")

    def test_in_a_busy_background_task(self):
        self.run_ok("import asyncio\nasync def spin():\n  print('go')\n  while True: pass")
        self.run_ok("cleaned = []")
        cell = self.interrupt(
            """
            task = asyncio.create_task(spin())
            try:
                await asyncio.sleep(1000)
            finally:
                cleaned.append(1)
            """
        )
        self.assertEqual(cell.status, "interrupted")
        self.assertEqual(self.run_ok("cleaned").result, "[1]")
        self.assertEqual(self.run_ok("await asyncio.sleep(0, 5)").result, "5")

    def test_a_cell_that_it_strikes_at_its_beginning_does_not_run_later(self):
        self.run_ok(
            """
            import _signal, asyncio, os, signal
            wake = _signal.set_wakeup_fd
            def strike(*args, **kwargs):
                _signal.set_wakeup_fd = wake
                os.kill(os.getpid(), signal.SIGINT)
                return wake(*args, **kwargs)
            _signal.set_wakeup_fd = strike
            """
        )
        self.assertEqual(self.run_cell("ran = True\nawait asyncio.sleep(0)").status, "interrupted")
        self.assertEqual(self.run_ok("await asyncio.sleep(0.02)\n'ran' in globals()").result, "False")

    def test_an_answer_does_not_depend_on_what_signals_woke_before(self):
        self.run_ok("import asyncio, signal\nother = asyncio.new_event_loop()")
        self.run_ok("other.add_signal_handler(signal.SIGUSR2, print)")
        self.assertEqual(self.run_ok("other.close()\nawait asyncio.sleep(0)\n5").result, "5")

    def test_a_cell_that_catches_it_is_interrupted_by_the_second(self):
        cell = """
            import time
            try:
                print('go'); time.sleep(1000)
            except KeyboardInterrupt:
                print('caught'); time.sleep(1000)
            """
        self.host.start(cell)
        for mark in ("go", "caught"):
            self.host.await_output(mark)
            self.host.interrupt()
        self.assertEqual(self.host.finish().status, "interrupted")

    def test_an_await_that_swallows_it_is_interrupted_by_the_second(self):
        cell = """
            import asyncio
            try:
                print('go'); await asyncio.sleep(1000)
            except BaseException:
                print('caught'); await asyncio.sleep(1000)
            """
        self.host.start(cell)
        for mark in ("go", "caught"):
            self.host.await_output(mark)
            self.host.interrupt()
        self.assertEqual(self.host.finish().status, "interrupted")

    def test_what_was_printed_until_then_is_told_even_if_it_is_in_vain(self):
        code = """
            import sys, time
            while True:
                try:
                    print('step 1... ', end='', file=sys.{}); print('go', file=sys.{})
                    while True: time.sleep(1)
                except KeyboardInterrupt:
                    pass
            """
        for names in (("stdout", "stderr"), ("stderr", "stdout")):
            with self.subTest(names=names):
                host = self.new_host()
                host.start(code.format(*names))
                own, other = (host.out, host.err) if names[0] == "stdout" else (host.err, host.out)
                host.await_output("go", other)
                self.assertEqual(host.text(own), "")
                host.interrupt()
                host.await_output("step 1... ", own)

    def test_in_a_repr(self):
        self.run_ok("class Slow:\n def __repr__(self):\n  print('go')\n  while True: pass")
        self.assertEqual(self.interrupt("Slow()").status, "interrupted")

    def test_in_a_finalizer(self):
        self.run_ok("class Slow:\n def __del__(self):\n  print('go')\n  while True: pass")
        cell = self.interrupt("x = Slow(); del x")
        self.assertIn("KeyboardInterrupt", cell.stderr)
        self.assertRegex(cell.stderr, 'File "<cell 1>", line [34], in __del__')
        self.assertNotIn("kernel", cell.stderr)

    def test_in_the_text_of_an_error(self):
        self.run_ok("class Slow(Exception):\n def __str__(self):\n  print('go')\n  while True: pass")
        self.assertEqual(self.interrupt("raise Slow").status, "interrupted")
        self.run_ok("1")

    def test_between_cells_it_is_ignored(self):
        self.run_ok("x = 1")
        for _ in range(3):
            self.host.interrupt()
            self.assertEqual(self.run_ok("x").result, "1")

    def test_a_handler_of_the_guest_lasts_for_its_cell(self):
        self.run_ok("import signal; _ = signal.signal(signal.SIGINT, signal.SIG_IGN)")
        self.assert_interrupted("while True: pass")

    def test_a_frame_under_way_is_sent_whole(self):
        self.run_ok("class Big:\n def _repr_html_(self): return 'x' * 8_000_000")
        self.host.start("display(Big())\nwhile True: pass")
        select.select([self.host.socket], [], [], DEADLINE_S)  # it has begun, and waits for a reader
        self.host.interrupt()
        cell = self.host.finish()
        self.assertEqual((cell.status, len(cell.shown[0]["data"])), ("interrupted", 8_000_000))
        self.run_ok("1")


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

    def test_a_file_that_took_the_place_of_a_descriptor_is_no_trap(self):
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

    def test_a_stream_that_cannot_be_flushed(self):
        self.run_ok("import sys\nclass Odd:\n def write(self, text): pass\n def flush(self): raise what")
        for what in ("SystemExit", "ValueError", "GeneratorExit"):
            self.run_ok(f"what = {what}; sys.stdout = Odd()")
        self.assertEqual(self.run_cell("what = KeyboardInterrupt; sys.stdout = Odd()").status, "interrupted")
        self.assertEqual(self.run_ok("print(1)").stdout, "1\n")

    def test_a_pipe_left_nonblocking_is_made_blocking(self):
        self.run_ok("import os; os.set_blocking(1, False)")
        self.assertEqual(len(self.run_ok("print('x' * 1_000_000)").stdout), 1_000_001)

    def test_so_is_one_that_a_child_made_so_since(self):
        child = "import os; input(); os.set_blocking(1, False); print('done', flush=True)"
        self.run_ok("import subprocess, sys")
        self.run_ok(f"child = subprocess.Popen([sys.executable, '-c', {child!r}], stdin=subprocess.PIPE)")
        self.run_ok("_ = child.stdin.write(b'\\n'); child.stdin.close()")
        self.host.await_output("done")
        self.assertEqual(self.run_ok("import os; os.get_blocking(1)").result, "True")

    def test_what_is_closed_or_replaced_between_cells_is_restored(self):
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


class RestTest(KernelTest):
    def switches(self):
        """How often the kernel has gone to rest, once it has."""
        with open(f"/proc/{self.host.process.pid}/status", encoding="ascii") as file:
            status = dict(line.split(":", 1) for line in file)
        if status["State"].split()[0] != "S":
            return None
        return int(status["voluntary_ctxt_switches"])

    def settled(self):
        deadline = time.monotonic() + DEADLINE_S
        seen = None
        while time.monotonic() < deadline:
            time.sleep(0.05)
            seen, before = self.switches(), seen
            if seen is not None and seen == before:
                return seen
        raise AssertionError("it does not rest")

    def test_it_is_not_woken_when_its_answer_is_read(self):
        for flags, first in (("-I", "x = 1"), ("-IS", "x = 1"), ("-IS", "import os; x = 1")):
            self.host = self.new_host((sys.executable, flags, KERNEL))
            self.run_ok(first)
            for _ in range(3):
                self.host.start("x += 1")
                rests = self.settled()  # it has answered, and nobody has looked at that yet
                self.assertEqual(self.host.finish().status, "ok")
                self.assertEqual(self.settled(), rests)


    def test_threads_do_not_meet_the_path_of_its_imports(self):
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
    def test_a_child_that_falls_out_of_its_cell_is_silent(self):
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

    def test_a_child_that_fails_says_so_and_ends(self):
        self.run_ok("import os, sys")
        cell = self.run_ok("pid = os.fork()\nif not pid: raise ValueError('x')\nos.waitpid(pid, 0)[1] >> 8")
        self.assertEqual(cell.result, "1")
        self.assertIn("ValueError: x\n", cell.stderr)
        cell = self.run_ok("pid = os.fork()\nif not pid: sys.exit(3)\nos.waitpid(pid, 0)[1] >> 8")
        self.assertEqual(cell.result, "3")

    def test_a_child_that_exits_says_what_the_interpreter_would(self):
        self.run_ok("import os, sys")
        for given in ["", "None", "0", "3", "True", "'gone'", "'1'", "''", "['a', 1]"]:
            with self.subTest(given):
                command = [sys.executable, "-c", f"import sys; sys.exit({given})"]
                script = subprocess.run(command, capture_output=True, text=True)
                cell = self.run_ok(f"pid = os.fork()\nif not pid: sys.exit({given})\nos.waitpid(pid, 0)[1] >> 8")
                self.assertEqual((cell.result, cell.stderr), (str(script.returncode), script.stderr))

    def test_a_child_does_not_hold_the_socket(self):
        self.run_ok("import os, time\nif os.fork() == 0: time.sleep(1000)")
        self.host.start("os._exit(0)")
        self.assertIsNone(self.host.frame())

    def test_multiprocessing(self):
        self.run_ok("import multiprocessing; fork = multiprocessing.get_context('fork')")
        self.run_ok("def f(x):\n display(x)\n return x * 2")
        cell = self.run_ok("with fork.Pool(2) as pool: doubled = pool.map(f, [1, 2])\ndoubled")
        self.assertEqual((cell.result, cell.shown), ("[2, 4]", []))
        spawned = "p = multiprocessing.get_context('spawn').Process(target=print, args=(2,))"
        cell = self.run_ok(f"{spawned}; print(1, end=''); p.start(); p.join(); p.exitcode")
        self.assertEqual((cell.result, cell.stdout, cell.stderr), ("0", "12\n", ""))


ZYGOTE = f"""
import os, sys
sys.path.insert(0, {os.path.dirname(KERNEL)!r})
import kernel, kernel_fork
del sys.path[0], sys.modules["kernel"]
missing = kernel_fork.warm_up({{preload!r}})
assert missing == ["no_such_module"], missing
{{setup}}
fork = os.fork
for fd in map(int, sys.argv[1:]):
    if fork() == 0:
        kernel.serve(fd)
        print("serve returned")
        os._exit(1)
os.wait()
"""


class ZygoteTest(unittest.TestCase):
    def run_in_siblings(self, preload, code, setup=""):
        script = ZYGOTE.format(preload=["no_such_module", *preload], setup=setup)
        pairs = [socket.socketpair() for _ in range(2)]
        theirs = [guest.fileno() for _, guest in pairs]
        zygote = subprocess.Popen(
            [sys.executable, "-I", "-c", script, *map(str, theirs)],
            stdin=subprocess.DEVNULL,
            pass_fds=theirs,
            start_new_session=True,
        )
        self.addCleanup(zygote.wait, DEADLINE_S)
        self.addCleanup(os.killpg, zygote.pid, signal.SIGKILL)
        results = []
        for host, guest in pairs:
            guest.close()
            host.settimeout(DEADLINE_S)
            self.addCleanup(host.close)
            stream = host.makefile("rwb")
            self.addCleanup(stream.close)
            body = request(1, code)
            stream.write(len(body).to_bytes(4, "big") + body)
            stream.flush()
            frames = [json.loads(stream.read(int.from_bytes(stream.read(4), "big"))) for _ in range(2)]
            self.assertEqual([frame["type"] for frame in frames], ["ready", "done"])
            self.assertEqual(frames[1]["status"], "ok", frames[1]["error"])
            results.append(frames[1]["result"])
        return results

    # A fork in C runs no handlers of Python's, so the tests take away those that would hide a lack.
    SAME = "import random; os.register_at_fork(after_in_child=lambda: random.seed(1))"

    def assert_siblings_differ(self, preload, code, setup=""):
        first, second = self.run_in_siblings(preload, code, setup)
        self.assertNotEqual(first, second)

    def test_random(self):
        self.assert_siblings_differ(["random"], "import random; random.random()", self.SAME)

    def test_names_of_temporary_files(self):
        # In PID namespaces of their own siblings have the same pid, by which tempfile would know a fork.
        setup = "import tempfile; os.getpid = lambda: 1; next(tempfile._get_candidate_names())"
        code = "import tempfile; next(tempfile._get_candidate_names())"
        self.assert_siblings_differ(["tempfile"], code, setup)

    def test_uuid_state(self):
        setup = "import uuid; uuid._node = uuid._last_timestamp = 1 << 62"
        results = self.run_in_siblings(["uuid"], "import uuid; (uuid._node, uuid._last_timestamp)", setup)
        self.assertEqual(results, ["(None, None)"] * 2)

    def test_authkey_of_multiprocessing(self):
        code = "import multiprocessing as mp; bytes(mp.current_process().authkey)"
        self.assert_siblings_differ(["multiprocessing"], code)

    def test_openssl_is_given_entropy(self):
        setup = "import ssl; ssl.RAND_add = lambda data, entropy: setattr(ssl, 'added', data)"
        self.assert_siblings_differ(["ssl"], "import ssl; ssl.added", setup)

    def test_openssl_draws_differently(self):
        code = "import ssl; (ssl.RAND_bytes(16), ssl.RAND_bytes(16))"
        self.assert_siblings_differ(["ssl"], code, "import ssl; ssl.RAND_bytes(16)")

    @needs("numpy")
    def test_numpy_random(self):
        code = "import numpy; numpy.random.random()"
        self.assert_siblings_differ(["numpy"], code, "import numpy; numpy.random.seed(1)")

    @needs("matplotlib")
    def test_pyplot_preloaded(self):
        code = "import matplotlib.pyplot as plt; plt.show.__module__"
        self.assertEqual(self.run_in_siblings(["matplotlib.pyplot"], code), ["'kernel_display'"] * 2)

    def test_modules_that_find_the_source_of_cells_preloaded(self):
        code = "import inspect, io, sys, threading, traceback; sys.stderr = io.StringIO()\nclass C: pass\n"
        code += "t = threading.Thread(target=lambda: 1 / 0); t.start(); t.join(); traceback.print_stack()\n"
        code += "sys.stderr.getvalue().count('File'), '1 / 0' in sys.stderr.getvalue(), inspect.getsource(C)"
        found = self.run_in_siblings(["inspect", "threading", "traceback"], code)
        self.assertEqual(found, ["(2, True, 'class C: pass\\n')"] * 2)

    def test_subprocess_preloaded(self):
        code = "import os, subprocess; r, w = os.pipe(); os.dup2(w, 1); print('a', end='')\n"
        code += "subprocess.run(['echo', 'b']); os.system('echo c'); os.read(r, 9)"
        self.assertEqual(self.run_in_siblings(["subprocess"], code), ["b'ab\\nc\\n'"] * 2)

    def test_the_home_is_that_of_the_session(self):
        code = "import site, sys; site.USER_SITE in sys.path, site.USER_BASE"
        found = self.run_in_siblings([], code, "os.environ['HOME'] = '/nonexistent'")
        self.assertEqual(found, ["(True, '/nonexistent/.local')"] * 2)

    def test_state_is_not_shared(self):
        code = "import builtins; n = getattr(builtins, 'n', 0) + 1; builtins.n = n; (__name__, n)"
        self.assertEqual(self.run_in_siblings([], code), ["('__main__', 1)"] * 2)
