"""Tests of guest/kernel.py: each starts the real kernel and plays its host.

    python3 -m unittest discover -s guest/tests

Every wait has a deadline. Tests of images and tables need matplotlib, numpy, pandas or pillow in the
Python that runs them, and say so when they skip.
"""

import base64
import importlib.util
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest

KERNEL = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "kernel.py")
DEADLINE_S = 60
NO_INPUT = "input() is not available in this sandbox: pass values in the code"
PNG = b"\x89PNG\r\n\x1a\n"


def needs(*modules):
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    return unittest.skipIf(missing, f"not installed: {', '.join(missing)}")


class Host:
    """The host's ends of one kernel: its socket, and the pipes behind its descriptors 1 and 2."""

    def __init__(self, command=(sys.executable, "-I", KERNEL), cwd=None):
        self.socket, guest = socket.socketpair()
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

    def close(self):
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait(DEADLINE_S)
        self.socket.close()
        for fd in self.pipes:
            os.close(fd)

    def pump(self, deadline):
        """Waits for anything to arrive and takes it in; False once the kernel has hung up."""
        wait_s = max(0, deadline - time.monotonic())
        ready, _, _ = select.select([self.socket, *self.pipes], [], [], wait_s)
        if not ready:
            raise AssertionError(f"nothing came; so far {self.text(self.out)!r}, {self.text(self.err)!r}")
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
        for fd, taken in self.pipes.items():
            try:
                for part in iter(lambda: os.read(fd, 1 << 20), b""):
                    taken += part
            except BlockingIOError:
                pass

    def frame(self):
        """The next frame; None at the end of the stream."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            size = int.from_bytes(self.received[:4], "big")
            if len(self.received) >= 4 + size and len(self.received) >= 4:
                body = bytes(self.received[4 : 4 + size])
                del self.received[: 4 + size]
                return json.loads(body.decode(), parse_constant=self.refuse_constant)
            if not self.pump(deadline):
                return None

    @staticmethod
    def refuse_constant(name):
        raise AssertionError(f"{name} is not JSON")

    def send(self, body):
        self.socket.sendall(len(body).to_bytes(4, "big") + body)

    def start(self, code):
        self.cells += 1
        request = {"type": "execute", "id": 100 + self.cells, "code": textwrap.dedent(code)}
        self.send(json.dumps(request).encode())

    def finish(self):
        """What the started cell led to: its `done`, and what was shown and printed until then."""
        shown = []
        while True:
            frame = self.frame()
            if frame is None:
                raise AssertionError(f"the kernel ended: {self.text(self.err)}")
            if frame["id"] != 100 + self.cells:
                raise AssertionError(f"not of this cell: {frame}")
            if frame["type"] == "done":
                break
            shown += frame["items"]
        self.drain()
        cell = Cell(frame, shown, self.text(self.out), self.text(self.err))
        for taken in self.pipes.values():
            taken.clear()
        return cell

    def run(self, code):
        self.start(code)
        return self.finish()

    def await_output(self, text):
        deadline = time.monotonic() + DEADLINE_S
        while text not in self.text(self.out):
            self.pump(deadline)

    def interrupt(self):
        os.kill(self.process.pid, signal.SIGINT)

    def text(self, fd):
        return self.pipes[fd].decode(errors="replace")


class Cell:
    def __init__(self, done, shown, stdout, stderr):
        self.status, self.result, self.error = done["status"], done["result"], done["error"]
        self.keys = sorted(done)
        self.shown, self.stdout, self.stderr = shown, stdout, stderr

    @property
    def traceback(self):
        """Without the lines of carets under source, which differ between versions of Python."""
        lines = self.error["traceback"].splitlines(keepends=True)
        return "".join(line for line in lines if line.strip(" ~^\n"))


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

    def run_error(self, code, name):
        cell = self.run_cell(code)
        self.assertEqual((cell.status, cell.error and cell.error["name"]), ("error", name))
        return cell


class ProtocolTest(KernelTest):
    def test_says_once_that_it_is_ready(self):
        version = ".".join(map(str, sys.version_info[:3]))
        self.assertEqual(self.ready, {"type": "ready", "language": "python", "version": version})
        self.assertEqual(self.run_ok("1").keys, ["error", "id", "result", "status", "type"])

    def test_ends_when_the_host_hangs_up(self):
        self.run_ok("import threading, time; threading.Thread(target=time.sleep, args=(1000,)).start()")
        self.host.socket.shutdown(socket.SHUT_WR)
        self.assertEqual(self.host.process.wait(DEADLINE_S), 0)

    def test_rejects_a_frame_over_the_limit_and_lives_on(self):
        self.run_ok("x = 1")
        size = (16 << 20) + 1
        self.host.send(b" " * size)
        message = f"a frame of {size} bytes exceeds {16 << 20}"
        self.assertEqual(self.host.frame(), {"type": "rejected", "id": None, "message": message})
        self.assertEqual(self.run_ok("x").result, "1")

    def test_takes_a_frame_at_the_limit(self):
        body = json.dumps({"type": "execute", "id": 101, "code": "6 * 7"}).encode()
        self.host.cells = 1
        self.host.send(body.ljust(16 << 20))
        self.assertEqual(self.host.finish().result, "42")

    def test_rejects_what_is_no_request(self):
        for body in (b"{", b"\xff", b"[]", b'{"type": "run"}', b'{"type": "execute", "id": 1, "code": 2}'):
            with self.subTest(body=body):
                self.host.send(body)
                self.assertEqual(self.host.frame()["type"], "rejected")
        self.assertEqual(self.run_ok("1").result, "1")

    def test_output_and_control_do_not_meet(self):
        cell = self.run_ok("print('{\"type\": \"done\"}'); 5")
        self.assertEqual((cell.stdout, cell.stderr, cell.result), ('{"type": "done"}\n', "", "5"))

    def test_subprocesses_do_not_inherit_the_socket(self):
        listing = "import subprocess; print(subprocess.run(['ls', '-l', '/proc/self/fd'], close_fds=False," \
            " capture_output=True, text=True).stdout.count('socket:'))"
        self.assertEqual(self.run_ok(listing).stdout, "0\n")

    def test_the_socket_is_at_no_small_number(self):
        cell = self.run_ok(
            """
            import os
            [fd for fd in range(100) if os.path.exists(f'/proc/self/fd/{fd}')
                and os.readlink(f'/proc/self/fd/{fd}').startswith('socket:')]
            """
        )
        self.assertEqual(cell.result, "[]")
        self.run_ok("os.closerange(3, 60)")
        self.assertEqual(self.run_ok("1").result, "1")

    def test_starts_under_a_low_limit_of_open_files(self):
        command = ("sh", "-c", 'ulimit -n 100; exec "$0" "$@"', sys.executable, "-I", KERNEL)
        self.assertEqual(self.new_host(command).run("1").result, "1")

    def test_closing_the_socket_ends_this_kernel_only(self):
        other = self.new_host()
        self.host.start("import os; os.closerange(3, 4096)")
        self.assertIsNone(self.host.frame())
        self.assertEqual(self.host.process.wait(DEADLINE_S), 1)
        self.assertEqual(other.run("1").result, "1")

    def test_garbage_on_the_socket_harms_its_own_stream_only(self):
        other = self.new_host()
        find = """
            import os
            own = [fd for fd in range(3, 4096) if os.path.exists(f'/proc/self/fd/{fd}')
                and os.readlink(f'/proc/self/fd/{fd}').startswith('socket:')]
            os.write(own[0], b'\\xff' * 40)
            """
        self.host.start(find)
        deadline = time.monotonic() + DEADLINE_S
        while len(self.host.received) < 44:
            self.host.pump(deadline)
        self.assertTrue(self.host.received.startswith(b"\xff" * 40))
        self.assertEqual(other.run("1").result, "1")

    def test_start_imports_little(self):
        heavy = {"asyncio", "traceback", "inspect", "base64", "typing", "dataclasses", "ctypes", "socket"}
        self.assertEqual(self.run_ok(f"import sys; {heavy} & set(sys.modules)").result, "set()")


class CellTest(KernelTest):
    def test_state_is_kept(self):
        self.run_ok("import math\nx = 20\ndef f(): return x + 1")
        self.assertEqual(self.run_ok("x += 1; f() + math.floor(0.5)").result, "22")

    def test_runs_as_main(self):
        self.run_ok("class C: pass")
        cell = self.run_ok("import sys, pickle; c = C(); (__name__, sys.argv, type(pickle.loads(pickle.dumps(c))) is C)")
        self.assertEqual(cell.result, "('__main__', [''], True)")

    def test_result_is_the_last_expression(self):
        for code, result in [("1; 'a'", "'a'"), ("x = 1", None), ("None", None), ("", None), ("'doc'", "'doc'")]:
            with self.subTest(code=code):
                self.assertEqual(self.run_ok(code).result, result)

    def test_underscore_holds_the_last_result(self):
        self.run_ok("6 * 7")
        self.run_ok("None")
        self.assertEqual(self.run_ok("_ + 1").result, "43")

    def test_lone_surrogates_are_sent(self):
        cell = self.run_ok("class S:\n def __repr__(self): return '\\ud800x'\nprint('\\udc80'); S()")
        self.assertEqual((cell.result, cell.stdout), ("\ud800x", "\\udc80\n"))
        self.assertEqual(self.run_error("raise ValueError('\\ud800')", "ValueError").error["message"], "\ud800")

    def test_modules_of_the_working_directory_are_found(self):
        with tempfile.TemporaryDirectory() as directory:
            with open(os.path.join(directory, "helper.py"), "w") as file:
                file.write("answer = 42")
            host = self.new_host(cwd=directory)
            self.assertEqual(host.run("import helper; helper.answer").result, "42")

    def test_a_repr_that_fails_is_reported(self):
        self.run_ok("class Bad:\n def __repr__(self): raise ValueError('no')")
        self.assertEqual(self.run_ok("Bad()").result, "<repr() failed: ValueError: no>")
        self.run_ok("class Deep:\n def __repr__(self): return repr(self)")
        self.assertRegex(self.run_ok("Deep()").result, "^<repr.. failed: RecursionError: ")
        self.run_ok("class No:\n def __repr__(self): return 5")
        self.assertRegex(self.run_ok("No()").result, "^<repr.. failed: TypeError: ")

    def test_a_long_repr_keeps_head_and_tail(self):
        cell = self.run_ok("class Long:\n def __repr__(self): return 'a' * 70000 + 'b' * 70000\nLong()")
        self.assertLessEqual(len(cell.result), 64 << 10)
        self.assertGreater(len(cell.result), 60 << 10)
        self.assertRegex(cell.result, r"^a+\n… \d+ characters left out …\nb+$")

    def test_huge_containers_are_not_rendered_whole(self):
        self.run_ok(
            """
            class Counted:
                reprs = 0
                def __repr__(self):
                    Counted.reprs += 1
                    return 'c'
            """
        )
        cell = self.run_ok("[[Counted()] * 1000] * 1000")
        self.assertRegex(cell.result, r"^\[\[c, c, .*\.\.\.")
        self.assertLess(int(self.run_ok("Counted.reprs").result), 100_000)
        self.assertLessEqual(len(self.run_ok("'x' * 10**8").result), 64 << 10)
        self.assertLessEqual(len(self.run_ok("dict.fromkeys(range(10**6))").result), 64 << 10)
        self.run_ok("a = []; a.append(a); a")

    def test_everything_printed_comes_before_done(self):
        cell = self.run_ok("import sys; print('a', end=''); print('b', end='', file=sys.stderr)")
        self.assertEqual((cell.stdout, cell.stderr), ("a", "b"))

    def test_output_of_c_code_comes_before_done(self):
        cell = self.run_ok("import ctypes; _ = ctypes.CDLL(None).printf(b'from c')")
        self.assertEqual(cell.stdout, "from c")

    def test_order_with_subprocesses_is_kept(self):
        cell = self.run_ok("import subprocess; print(1); _ = subprocess.run(['echo', '2']); print(3)")
        self.assertEqual(cell.stdout, "1\n2\n3\n")

    def test_big_output_of_a_subprocess_arrives_whole(self):
        cell = self.run_ok("import subprocess; _ = subprocess.run(['head', '-c', '3000000', '/dev/zero'])")
        self.assertEqual(len(cell.stdout), 3_000_000)

    def test_threads_go_on_between_cells(self):
        self.run_ok(
            """
            import threading
            go, gone = threading.Event(), threading.Event()
            threading.Thread(target=lambda: (go.wait(), gone.set())).start()
            """
        )
        self.assertEqual(self.run_ok("go.set(); gone.wait(30)").result, "True")

    def test_exit_ends_the_cell_only(self):
        self.run_ok("x = 1; import sys")
        for code, message in [("sys.exit(3)", "3"), ("exit()", "0"), ("sys.exit('enough')", "enough")]:
            with self.subTest(code=code):
                cell = self.run_cell(f"{code}\nx = 2")
                self.assertEqual(cell.status, "exited")
                self.assertEqual(cell.error, {"name": "SystemExit", "message": message, "traceback": ""})
        self.assertEqual(self.run_ok("x").result, "1")

    def test_a_hard_exit_is_the_end(self):
        self.host.start("import os; os._exit(7)")
        self.assertIsNone(self.host.frame())
        self.assertEqual(self.host.process.wait(DEADLINE_S), 7)

    def test_input_is_refused(self):
        self.run_ok("import sys")
        reads = ["input()", "input('name? ')", "sys.stdin.read()", "sys.stdin.readline()", "list(sys.stdin)",
            "sys.stdin.buffer.read()"]
        self.run_cell("exit()")  # closes sys.stdin
        for code in reads:
            with self.subTest(code=code):
                self.assertEqual(self.run_error(code, "RuntimeError").error["message"], NO_INPUT)


class AwaitTest(KernelTest):
    def test_top_level_await(self):
        self.run_ok("import asyncio\nasync def f(x):\n await asyncio.sleep(0)\n return x")
        self.assertEqual(self.run_ok("x = await f(1)\nx + await f(2)").result, "3")
        cell = self.run_ok(
            """
            import contextlib
            @contextlib.asynccontextmanager
            async def opened():
                yield 'open'
            async def numbers():
                for n in range(3):
                    yield n
            async with opened() as o:
                seen = [n async for n in numbers()]
            async for n in numbers():
                seen.append(n)
            o, seen
            """
        )
        self.assertEqual(cell.result, "('open', [0, 1, 2, 0, 1, 2])")

    def test_one_loop_for_all_cells(self):
        self.run_ok(
            """
            import asyncio
            async def later():
                for _ in range(3):
                    await asyncio.sleep(0)
                return 'late'
            task = asyncio.ensure_future(later()); await asyncio.sleep(0)
            """
        )
        self.assertEqual(self.run_ok("task.done()").result, "False")
        self.assertEqual(self.run_ok("await task").result, "'late'")

    def test_asyncio_run_still_works(self):
        self.run_ok("import asyncio\nasync def f(): return 1")
        self.assertEqual(self.run_ok("asyncio.run(f())").result, "1")
        self.assertEqual(self.run_ok("await f()").result, "1")

    def test_a_closed_loop_is_replaced(self):
        self.run_ok("import asyncio; await asyncio.sleep(0); loop = asyncio.get_running_loop()")
        self.run_ok("loop.close()")
        self.run_ok("await asyncio.sleep(0)")

    def test_the_traceback_has_no_frames_of_the_event_loop(self):
        cell = self.run_error("async def f():\n    raise ValueError('x')\nawait f()", "ValueError")
        expected = """\
            Traceback (most recent call last):
              File "<cell 1>", line 3, in <module>
                await f()
              File "<cell 1>", line 2, in f
                raise ValueError('x')
            ValueError: x
            """
        self.assertEqual(cell.traceback, textwrap.dedent(expected))


class ErrorTest(KernelTest):
    def assert_traceback(self, cell, expected):
        self.assertEqual(cell.traceback, textwrap.dedent(expected).lstrip("\n"))

    def test_frames_of_several_cells(self):
        self.run_ok("def f(x):\n    raise ValueError(f'bad {x}')")
        cell = self.run_error("a = 1\nf(a)", "ValueError")
        self.assertEqual((cell.error["message"], cell.result), ("bad 1", None))
        self.assert_traceback(
            cell,
            """
            Traceback (most recent call last):
              File "<cell 2>", line 2, in <module>
                f(a)
              File "<cell 1>", line 2, in f
                raise ValueError(f'bad {x}')
            ValueError: bad 1
            """,
        )

    def test_the_kernels_frames_are_left_out_anywhere(self):
        cell = self.run_error("input()", "RuntimeError")
        self.assert_traceback(
            cell,
            f"""
            Traceback (most recent call last):
              File "<cell 1>", line 1, in <module>
                input()
            RuntimeError: {NO_INPUT}
            """,
        )

    def test_chained_exceptions(self):
        cell = self.run_error(
            """\
            try:
                input()
            except RuntimeError as e:
                raise KeyError('k') from e
            """,
            "KeyError",
        )
        self.assert_traceback(
            cell,
            f"""
            Traceback (most recent call last):
              File "<cell 1>", line 2, in <module>
                input()
            RuntimeError: {NO_INPUT}

            The above exception was the direct cause of the following exception:

            Traceback (most recent call last):
              File "<cell 1>", line 4, in <module>
                raise KeyError('k') from e
            KeyError: 'k'
            """,
        )

    def test_syntax_error_has_its_caret(self):
        cell = self.run_error("x = 1\ny = = 2", "SyntaxError")
        self.assertEqual(
            cell.error["traceback"],
            '  File "<cell 1>", line 2\n    y = = 2\n        ^\nSyntaxError: invalid syntax\n',
        )

    def test_syntax_error_found_after_parsing_shows_its_line(self):
        cell = self.run_error("x = 1\nreturn x", "SyntaxError")
        self.assert_traceback(
            cell,
            """\
              File "<cell 1>", line 2
                return x
            SyntaxError: 'return' outside function
            """.replace("            ", "", 0),
        ) if False else self.assertEqual(
            cell.traceback,
            '  File "<cell 1>", line 2\n    return x\nSyntaxError: \'return\' outside function\n',
        )

    def test_nothing_runs_of_a_cell_that_does_not_compile(self):
        self.run_error("x = 1\nprint(x)\n(await x for x in return)", "SyntaxError")
        self.run_error("x", "NameError")

    def test_source_is_there_for_the_guests_own_tracebacks(self):
        cell = self.run_ok("import traceback\ntry:\n  raise ValueError(1)\nexcept ValueError:\n  traceback.print_exc()")
        self.assertIn("raise ValueError(1)", cell.stderr)
        self.run_ok("import inspect\ndef f(): return 1")
        self.assertEqual(self.run_ok("inspect.getsource(f)").result, "'def f(): return 1\\n'")

    def test_a_long_traceback_keeps_head_and_tail(self):
        self.run_ok("def f(n): g(n)\ndef g(n): f(n + 1)")
        trace = self.run_error("f(0); raise ValueError", "RecursionError").error["traceback"]
        self.assertLessEqual(len(trace), 32 << 10)
        self.assertRegex(trace, r"^Traceback \(most recent call last\):\n")
        self.assertRegex(trace, r"\n… \d+ characters left out …\n")
        self.assertIn("\nRecursionError: maximum recursion depth exceeded", trace)

    def test_a_long_message_is_bounded(self):
        error = self.run_error("raise ValueError('x' * 10**7)", "ValueError").error
        self.assertLessEqual(len(error["message"]), 32 << 10)

    def test_an_exception_that_cannot_be_printed(self):
        self.run_ok("class Odd(Exception):\n def __str__(self): raise ValueError('no')")
        error = self.run_error("raise Odd", "Odd").error
        self.assertEqual(error["message"], "<str() failed: ValueError: no>")
        self.assertIn('File "<cell 2>", line 1', error["traceback"])

    def test_exceptions_outside_of_exception(self):
        self.run_error("raise BaseException('x')", "BaseException")
        self.run_error("raise GeneratorExit", "GeneratorExit")

    @unittest.skipIf(sys.version_info < (3, 11), "exception groups came with Python 3.11")
    def test_exception_groups(self):
        cell = self.run_error("raise ExceptionGroup('two', [ValueError(1), KeyError(2)])", "ExceptionGroup")
        self.assertIn("| KeyError: 2", cell.error["traceback"])
        self.assertNotIn("kernel.py", cell.error["traceback"])


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
        self.assertRegex(cell.traceback, r"^Traceback.*\n  File \"<cell 1>\", line \d.*\n.*\nKeyboardInterrupt\n$")

    def test_in_a_busy_loop(self):
        self.assert_interrupted("while True: pass")

    def test_in_a_subprocess(self):
        self.assert_interrupted("import subprocess\nsubprocess.run(['sleep', '1000'])")

    def test_in_an_await(self):
        self.run_ok("import asyncio; cleaned = []")
        cell = self.assert_interrupted("try:\n  await asyncio.sleep(1000)\nfinally:\n  cleaned.append(1)")
        self.assertEqual(cell.stderr, "")
        self.assertNotIn("kernel.py", cell.error["traceback"])
        self.assertEqual(self.run_ok("cleaned").result, "[1]")
        self.assertEqual(self.run_ok("await asyncio.sleep(0, 5)").result, "5")

    def test_in_a_busy_coroutine(self):
        cell = self.assert_interrupted("import asyncio\nawait asyncio.sleep(0)\nwhile True: pass")
        self.assertEqual(cell.stderr, "")

    def test_in_a_busy_background_task(self):
        self.run_ok("import asyncio\nasync def spin():\n  await asyncio.sleep(0)\n  print('go')\n  while True: pass")
        cell = self.interrupt("t = asyncio.ensure_future(spin()); await asyncio.sleep(1000)")
        self.assertEqual(cell.status, "interrupted")
        self.assertEqual(self.run_ok("await asyncio.sleep(0, 5)").result, "5")

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

    def test_in_a_repr(self):
        self.run_ok("class Slow:\n def __repr__(self):\n  print('go')\n  while True: pass")
        self.assertEqual(self.interrupt("Slow()").status, "interrupted")

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
        self.host.start("print('go')\nwhile True: display('x' * 60000)")
        self.host.await_output("go")
        received = len(self.host.received)
        while len(self.host.received) < received + (1 << 20):  # the socket is full again and again
            self.host.pump(time.monotonic() + DEADLINE_S)
        self.host.interrupt()
        cell = self.host.finish()
        self.assertEqual(cell.status, "interrupted")
        self.run_ok("1")


class DescriptorTest(KernelTest):
    def test_closed_descriptors_are_reopened(self):
        self.run_ok("import os, sys")
        for code in ("os.close(1)", "os.close(2)", "os.close(0)", "os.closerange(0, 3)"):
            with self.subTest(code=code):
                self.run_ok(code)
                cell = self.run_ok("_ = os.system('echo out; echo err >&2; cat'); print('a'); print('b', file=sys.stderr)")
                self.assertEqual((cell.stdout, cell.stderr), ("out\na\n", "err\nb\n"))

    def test_a_file_that_took_the_place_of_a_descriptor_is_no_trap(self):
        self.run_ok("import os; os.close(1); f = open('/dev/null', 'w')")
        self.assertEqual(self.run_ok("print('a')").stdout, "a\n")

    def test_replaced_and_closed_streams_are_restored(self):
        self.run_ok("import io, sys")
        breakers = [
            "sys.stdout = io.StringIO(); sys.stderr = None",
            "sys.stdout.close(); sys.stderr.close()",
            "x = sys.stdout.detach(); y = sys.stderr.detach()",
            "sys.stdout = io.TextIOWrapper(sys.stdout.buffer); sys.stderr = io.TextIOWrapper(sys.stderr.buffer)",
            "del sys.stdout, sys.stderr",
        ]
        for code in breakers:
            with self.subTest(code=code):
                self.run_ok(code)
                cell = self.run_ok("print('a'); print('b', file=sys.stderr)")
                self.assertEqual((cell.stdout, cell.stderr), ("a\n", "b\n"))

    def test_a_pipe_left_nonblocking_is_made_blocking(self):
        self.run_ok("import os; os.set_blocking(1, False)")
        self.assertEqual(len(self.run_ok("print('x' * 1_000_000)").stdout), 1_000_001)


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

    def test_a_child_does_not_hold_the_socket(self):
        self.run_ok("import os, time\nif os.fork() == 0: time.sleep(1000)")
        self.host.start("os._exit(0)")
        self.assertIsNone(self.host.frame())

    def test_multiprocessing(self):
        self.run_ok("import multiprocessing as mp; fork = mp.get_context('fork')\ndef f(x): display(x); return x * 2")
        cell = self.run_ok("with fork.Pool(2) as pool: doubled = pool.map(f, [1, 2])\ndoubled")
        self.assertEqual((cell.result, cell.shown), ("[2, 4]", []))


ZYGOTE = f"""
import importlib.util, os, sys
spec = importlib.util.spec_from_file_location("kernel", {KERNEL!r})
kernel = importlib.util.module_from_spec(spec)
spec.loader.exec_module(kernel)
missing = kernel.prepare({{preload!r}})
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
    def fork_two(self, preload, setup=""):
        """Two kernels of one zygote."""
        script = ZYGOTE.format(preload=["no_such_module", *preload], setup=setup)
        mine, theirs = zip(*(socket.socketpair() for _ in range(2)))
        fds = [end.fileno() for end in theirs]
        first = Host((sys.executable, "-I", "-c", script, *map(str, fds)), pass_fds=fds)
        self.addCleanup(first.close)
        return first, mine

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
            body = json.dumps({"type": "execute", "id": 1, "code": code}).encode()
            stream.write(len(body).to_bytes(4, "big") + body)
            stream.flush()
            frames = [json.loads(stream.read(int.from_bytes(stream.read(4), "big"))) for _ in range(2)]
            self.assertEqual([frame["type"] for frame in frames], ["ready", "done"])
            self.assertEqual(frames[1]["status"], "ok", frames[1]["error"])
            results.append(frames[1]["result"])
        return results

    # A fork in C runs no handlers of Python's, so the tests take away those that would hide a lack.
    SAME = "import random, tempfile; random.seed(1); os.register_at_fork(after_in_child=lambda: random.seed(1))"

    def assert_siblings_differ(self, preload, code, setup=""):
        first, second = self.run_in_siblings(preload, code, setup)
        self.assertNotEqual(first, second)

    def test_random(self):
        self.assert_siblings_differ(["random"], "import random; random.random()", self.SAME)

    def test_names_of_temporary_files(self):
        # In PID namespaces of their own siblings have the same pid, by which tempfile would know a fork.
        setup = "import tempfile; names = tempfile._get_candidate_names(); next(names); os.getpid = lambda: 1"
        self.assert_siblings_differ(["tempfile"], "import tempfile; next(tempfile._get_candidate_names())", setup)

    def test_uuid_state(self):
        setup = "import uuid; uuid._node = uuid._last_timestamp = 1 << 62"
        results = self.run_in_siblings(["uuid"], "import uuid; (uuid._node, uuid._last_timestamp)", setup)
        self.assertEqual(results, ["(None, None)"] * 2)

    def test_authkey_of_multiprocessing(self):
        code = "import multiprocessing as mp; bytes(mp.current_process().authkey)"
        self.assert_siblings_differ(["multiprocessing"], code)

    @needs("numpy")
    def test_numpy_random(self):
        code = "import numpy; numpy.random.random()"
        self.assert_siblings_differ(["numpy"], code, "import numpy; numpy.random.seed(1)")

    @needs("matplotlib")
    def test_pyplot_preloaded(self):
        code = "import matplotlib.pyplot as plt; plt.show.__module__"
        self.assertEqual(self.run_in_siblings(["matplotlib.pyplot"], code), ["'kernel'"] * 2)

    def test_state_is_not_shared(self):
        code = "import builtins; n = getattr(builtins, 'n', 0) + 1; builtins.n = n; (__name__, n)"
        self.assertEqual(self.run_in_siblings([], code), ["('__main__', 1)"] * 2)


class DisplayTest(KernelTest):
    def show(self, code, **kwargs):
        return self.run_ok(code).shown

    def test_text_for_what_has_no_rich_form(self):
        self.assertEqual(
            self.show("display(1, 'a')"),
            [{"mime": "text/plain", "data": "1"}, {"mime": "text/plain", "data": "'a'"}],
        )

    def test_rich_methods(self):
        png = base64.b64encode(PNG).decode()
        cases = [
            ("_repr_png_", repr(PNG), "image/png", png),
            ("_repr_png_", repr(png), "image/png", png),
            ("_repr_png_", repr((PNG, {"width": 1})), "image/png", png),
            ("_repr_jpeg_", "b'j'", "image/jpeg", "ag=="),
            ("_repr_svg_", "'<svg/>'", "image/svg+xml", base64.b64encode(b"<svg/>").decode()),
            ("_repr_html_", "'<b>é</b>'", "text/html", "<b>é</b>"),
            ("_repr_json_", "{'a': [1, None]}", "application/json", {"a": [1, None]}),
            ("_repr_mimebundle_", "{'text/latex': '$x$'}", "text/latex", "$x$"),
            ("_repr_mimebundle_", "({'application/vnd.a+json': [1]}, {})", "application/vnd.a+json", [1]),
            ("_repr_mimebundle_", "{'application/pdf': b'p'}", "application/pdf", "cA=="),
        ]
        for method, value, mime, data in cases:
            with self.subTest(method=method, value=value):
                self.run_ok(f"class R:\n def {method}(self): return {value}\n def __repr__(self): return 'R'")
                cell = self.run_ok("R()")
                self.assertEqual((cell.result, cell.shown), ("R", [{"mime": mime, "data": data}]))
                shown = self.show("display(R())")
                self.assertEqual(shown[0], {"mime": mime, "data": data})
                plain = [] if mime.startswith("image/") else [{"mime": "text/plain", "data": "R"}]
                self.assertEqual(shown[1:], plain)

    def test_one_image_of_several(self):
        self.run_ok("class R:\n def _repr_png_(self): return b'p'\n def _repr_jpeg_(self): return b'j'")
        self.assertEqual([item["mime"] for item in self.show("R()")], ["image/png"])

    def test_a_class_and_an_object_with_every_attribute_are_not_rich(self):
        self.run_ok("class R:\n def _repr_html_(self): return 'x'")
        self.assertEqual(self.show("R"), [])
        self.assertEqual(self.show("import unittest.mock; unittest.mock.Mock()"), [])

    def test_a_rich_method_that_fails_or_declines(self):
        self.run_ok("class R:\n def _repr_html_(self): raise ValueError('no')\n def _repr_svg_(self): pass")
        cell = self.run_ok("R()")
        self.assertEqual(cell.shown, [])
        self.assertEqual(cell.stderr, "display: _repr_html_ of R failed: ValueError: no\n")

    def test_what_is_no_json_is_dropped(self):
        for value in ("float('nan')", "object()"):
            with self.subTest(value=value):
                self.run_ok(f"class R:\n def _repr_json_(self): return {value}")
                cell = self.run_ok("R()")
                self.assertEqual(cell.shown, [])
                self.assertRegex(cell.stderr, r"^display: application/json dropped: .*\n$")

    def test_at_most_32_items_a_cell(self):
        for _ in range(2):
            cell = self.run_ok("for n in range(40): display(n)")
            self.assertEqual([item["data"] for item in cell.shown], [str(n) for n in range(32)])
            self.assertEqual(cell.stderr, "display: 8 items dropped: a cell shows at most 32\n")

    def test_at_most_8_mib_an_item(self):
        self.run_ok("class R:\n def __init__(self, n): self.n = n\n def _repr_png_(self): return bytes(self.n)")
        cell = self.run_ok("display(R(8 << 20), R((8 << 20) + 1))")
        self.assertEqual([len(item["data"]) for item in cell.shown], [((8 << 20) + 2) // 3 * 4])
        self.assertEqual(cell.stderr, "display: image/png dropped: 8388609 bytes, more than 8388608\n")

    def test_a_frame_that_escapes_make_too_large_is_dropped(self):
        self.run_ok("class R:\n def _repr_html_(self): return chr(1) * (8 << 20)")
        cell = self.run_ok("R()")
        self.assertEqual(cell.shown, [])
        self.assertRegex(cell.stderr, r"^display: text/html dropped: \d+ bytes when encoded, more than 16777216\n$")

    def test_from_a_thread(self):
        cell = self.run_ok("import threading; t = threading.Thread(target=display, args=(1,)); t.start(); t.join()")
        self.assertEqual(cell.shown, [{"mime": "text/plain", "data": "1"}])

    def test_between_cells_it_is_dropped(self):
        self.run_ok(
            """
            import threading
            go = threading.Event()
            def late():
                go.wait()
                while __import__('time').sleep(0.01) or running: pass
                display(1)
                print('shown')
            running = True
            threading.Thread(target=late).start()
            """
        )
        self.run_ok(
            """
            class Last:
                def __del__(self): pass
            go.set()
            """
        )
        self.run_ok("threading.Timer(0.05, lambda: globals().update(running=False)).start()")
        self.host.await_output("shown")
        self.assertEqual(self.host.text(self.host.err), "display: no cell is running\n")
        self.assertEqual(self.run_ok("1").shown, [])

    def assert_png(self, item):
        self.assertEqual(item["mime"], "image/png")
        self.assertTrue(base64.b64decode(item["data"]).startswith(PNG))


class LibraryTest(DisplayTest):
    """With the libraries that people draw and tabulate with."""

    @needs("PIL")
    def test_pillow_image(self):
        self.run_ok("from PIL import Image; image = Image.new('RGB', (4, 4))")
        for code in ("image", "display(image)"):
            (item,) = self.run_ok(code).shown
            self.assert_png(item)

    @needs("pandas")
    def test_data_frame(self):
        self.run_ok("import pandas; frame = pandas.DataFrame({'a': [1]})")
        cell = self.run_ok("frame")
        self.assertEqual((cell.result, [item["mime"] for item in cell.shown]), ("   a\n0  1", ["text/html"]))
        self.assertIn("<table", cell.shown[0]["data"])
        self.assertEqual([item["mime"] for item in self.show("display(frame)")], ["text/html", "text/plain"])

    @needs("matplotlib")
    def test_open_figures_are_sent_and_closed(self):
        cell = self.run_ok("import matplotlib.pyplot as plt; a = plt.figure(); b = plt.figure(); a.gca(); None")
        self.assertEqual(cell.stderr, "")
        self.assertEqual(len(cell.shown), 2)
        self.assert_png(cell.shown[0])
        self.assertEqual(self.run_ok("plt.get_fignums()").result, "[]")
        self.assertEqual(self.show("1"), [])

    @needs("matplotlib")
    def test_a_figure_is_sent_once(self):
        self.run_ok("import matplotlib.pyplot as plt")
        for code in ("plt.figure()", "f = plt.figure(); display(f); f", "plt.plot([1]); plt.show()"):
            with self.subTest(code=code):
                self.assertEqual(len(self.show(code)), 1 + code.endswith("; f"))

    @needs("matplotlib")
    def test_show_starts_afresh(self):
        cell = self.run_ok(
            """
            import matplotlib.pyplot as plt
            plt.plot([1, 2]); plt.show()
            print(plt.get_fignums())
            plt.plot([2, 1]); plt.show()
            """
        )
        self.assertEqual((cell.stdout, cell.stderr, len(cell.shown)), ("[]\n", "", 2))

    @needs("matplotlib")
    def test_figures_of_a_cell_that_fails_are_sent(self):
        cell = self.run_error("import matplotlib.pyplot as plt; plt.plot([1]); raise ValueError", "ValueError")
        self.assertEqual(len(cell.shown), 1)

    @needs("matplotlib")
    def test_a_figure_that_cannot_be_drawn(self):
        cell = self.run_ok("import matplotlib.pyplot as plt; plt.title('$\\\\frac$'); None")
        self.assertEqual(cell.shown, [])
        self.assertRegex(cell.stderr, r"^display: figure dropped: ")
        self.assertEqual(self.run_ok("plt.get_fignums()").stderr, "")

    @needs("numpy")
    def test_array(self):
        self.assertEqual(self.run_ok("import numpy; numpy.zeros(2)").result, "array([0., 0.])")


if __name__ == "__main__":
    unittest.main()
