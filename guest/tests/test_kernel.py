"""Tests of guest/kernel.py: each starts the real kernel and plays its host.

    python3 -m unittest discover -s guest/tests

Every wait has a deadline. Tests of images and tables need matplotlib, numpy, pandas or pillow in the
Python that runs them, and say so when they skip.
"""

import ast
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
FRAME_LIMIT = 12 << 20  # of the host: MOST_BYTES in crates/runtime/src/session/language.rs
NO_INPUT = "input() is not available in this sandbox: pass values in the code"


def needs(*modules):
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    return unittest.skipIf(missing, f"not installed: {', '.join(missing)}")


def request(cell, code):
    return cell.to_bytes(8, "big") + code.encode()


class Host:
    """The host's ends of one kernel: its socket, and the pipes behind its descriptors 1 and 2."""

    def __init__(self, command=(sys.executable, "-I", KERNEL), cwd=None, first=None):
        self.socket, guest = socket.socketpair()
        self.socket.settimeout(DEADLINE_S)
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
        if first is not None:
            self.send(first)

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
                return self.read_frame(body)
            if not self.pump(deadline):
                return None

    def read_frame(self, body):
        """As the host does, which takes no more, and no half of a surrogate pair."""
        if len(body) > FRAME_LIMIT:
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
        self.send(request(100 + self.cells, textwrap.dedent(code)))

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

    def await_output(self, text, fd=None):
        deadline = time.monotonic() + DEADLINE_S
        while text not in self.text(fd or self.out):
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
        """Without the lines of carets under source, which differ between versions of Python."""
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
        self.host.cells = 1
        self.host.send(request(101, "6 * 7").ljust(16 << 20))
        self.assertEqual(self.host.finish().result, "42")

    def test_rejects_what_is_no_request(self):
        for body in (b"", b"1234567", request(1, "") + b"\xff"):
            with self.subTest(body=body):
                self.host.send(body)
                self.assertEqual(self.host.frame()["type"], "rejected")
        self.assertEqual(self.run_ok("1").result, "1")

    def test_output_and_control_do_not_meet(self):
        cell = self.run_ok("print('{\"type\": \"done\"}'); 5")
        self.assertEqual((cell.stdout, cell.stderr, cell.result), ('{"type": "done"}\n', "", "5"))

    def test_subprocesses_do_not_inherit_the_socket(self):
        listing = "['ls', '-l', '/proc/self/fd']"
        cell = self.run_ok(f"import subprocess; _ = subprocess.run({listing}, close_fds=False)")
        self.assertIn("pipe:", cell.stdout)
        self.assertNotIn("socket:", cell.stdout)

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
        host = self.new_host(command)
        host.run("import os; os.closerange(3, 60)")
        self.assertEqual(host.run("1").result, "1")

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
        load = f"sys.path.insert(0, {os.path.dirname(KERNEL)!r}); import kernel"
        heavy = {"asyncio", "traceback", "inspect", "base64", "typing", "dataclasses", "ctypes", "socket", "json", "re", "enum"}
        loaded = [
            subprocess.run(
                [sys.executable, "-I", "-c", f"import sys; {first}; print(*sys.modules)"],
                capture_output=True,
                text=True,
                timeout=DEADLINE_S,
            ).stdout.split()
            for first in ("pass", load)  # a site has imports of its own
        ]
        self.assertIn("fcntl", loaded[1])
        self.assertEqual(heavy & (set(loaded[1]) - set(loaded[0])), set())


class WithoutSiteTest(KernelTest):
    """Started with -S, as in a session that has no warm interpreter: nobody can tell."""

    COMMAND = ("env", "HOME=/nonexistent", sys.executable, "-I", "-S", KERNEL)

    def setUp(self):
        self.host = self.new_host(self.COMMAND)
        self.bare = subprocess.run(
            [sys.executable, "-I", "-c", "import sys; print(sys.path, sys.prefix)"],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        ).stdout

    def test_the_first_cell_finds_what_site_makes(self):
        for code in ("import sys; print(sys.path[1:], sys.prefix)", "print(*eval('__imp' + 'ort__')('sys').path[1:])"):
            with self.subTest(code=code):
                host = self.new_host(self.COMMAND)
                self.assertEqual(host.run(code).stdout.split()[-1], self.bare_of(code).split()[-1])
        self.assertEqual(self.run_cell("quit(3)").status, "exited")
        self.assertEqual(self.run_ok("help").result[:4], "Type")

    def bare_of(self, code):
        command = [sys.executable, "-I", "-c", code.replace("path[1:]", "path")]
        return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S).stdout

    def test_later_cells_find_it_too(self):
        self.assertEqual(self.run_ok("print(1)").stdout, "1\n")
        of_site = "import sys; print([it for it in sys.path[1:] if not it.startswith('/nonexistent')], sys.prefix)"
        self.assertEqual(self.run_ok(of_site).stdout, self.bare)
        self.assertEqual(self.run_ok("sys.path[0], exit").result[:4], "('',")

    def test_interpreters_that_it_starts_have_it(self):
        code = "import subprocess, sys; print(subprocess._args_from_interpreter_flags(), sys.flags.isolated)"
        self.assertEqual(self.run_ok(code).stdout, "['-I'] 1\n")

    def test_the_first_cell_may_fail(self):
        cell = self.run_error("def f():\n    1 / 0\nf()", "ZeroDivisionError")
        self.assertIn('File "<cell 1>", line 2, in f\n    1 / 0\n', cell.traceback)
        self.run_error("'", "SyntaxError")

    def test_a_first_call_is_as_any_other(self):
        codes = (
            "print(1)", "nothing(1)", "print(1 // 0, 2)", "max(1, 2)", "max(1, 2) # (", "print(1", "print(1)) + (2)",
            "print(y:=1)", "yield(1)", "callable(lambda: 1)", "print({x for x in 'ab' if 0})", "print(1 #)", "len('\\d')",
        )  # fmt: skip
        for code in codes:
            with self.subTest(code=code):
                first, other = self.new_host(self.COMMAND), self.new_host(self.COMMAND)
                other.run("import sys")
                cells = [first.run(code), other.run(code)]
                told = [(cell.status, cell.stdout, cell.result, cell.error and cell.traceback) for cell in cells]
                self.assertEqual(str(told[0]), str(told[1]).replace("<cell 2>", "<cell 1>"))
                self.assertEqual([host.run("'y' in globals()").result for host in (first, other)], [str("y:" in code)] * 2)

    def test_cells_before_linecache_was_imported_are_shown(self):
        self.run_ok("def f(): return 1 / 0")
        self.run_ok("x = 1")
        cell = self.run_ok("import traceback\ntry: f()\nexcept Exception: traceback.print_exc()")
        self.assertIn("def f(): return 1 / 0\n", cell.stderr)
        self.assertEqual(self.run_ok("import inspect; inspect.getsource(f)").result, repr("def f(): return 1 / 0\n"))

    def test_modules_of_the_working_directory(self):
        with tempfile.TemporaryDirectory() as directory:
            for name in ("json", "linecache", "tokenize", "traceback", "textwrap", "reprlib", "site"):
                with open(os.path.join(directory, f"{name}.py"), "w") as file:
                    file.write("raise SystemError")
            with open(os.path.join(directory, "helper.py"), "w") as file:
                file.write("answer = 42")
            host = self.new_host(self.COMMAND, cwd=directory)
            self.assertEqual(host.run("1 / 0").error["name"], "ZeroDivisionError")
            self.assertEqual(host.run("'\\n'").result, "'\\n'")
            self.assertEqual(host.run("import helper; helper.answer").result, "42")


class HomeTest(KernelTest):
    """What `pip` installs for the user, where it may not write to the interpreter's own place."""

    def setUp(self):
        home = tempfile.TemporaryDirectory()
        self.addCleanup(home.cleanup)
        self.home = home.name
        self.place = os.path.join(home.name, f".local/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages")

    def start(self, flags="-I"):
        self.host = self.new_host(("env", f"HOME={self.home}", sys.executable, flags, KERNEL))

    def install(self, name, text="answer = 42"):
        os.makedirs(self.place, exist_ok=True)
        time.sleep(0.02)  # directories that change are known by their time, which goes in steps
        with open(os.path.join(self.place, name), "w") as file:
            file.write(text)

    def test_it_is_found_from_the_moment_that_it_is_there(self):
        for number, flags in enumerate(("-I", "-IS")):
            with self.subTest(flags=flags):
                self.start(flags)
                for name in (f"first_{number}", f"second_{number}"):
                    self.run_error(f"import {name}", "ModuleNotFoundError")
                    self.install(f"{name}.py")
                    self.assertEqual(self.run_ok(f"import {name}; {name}.answer").result, "42")

    def test_a_cell_may_install_what_it_lacks(self):
        self.start()
        cell = f"""
            import os
            try:
                import lacking
            except ImportError:
                os.makedirs({self.place!r})
                with open({self.place!r} + '/lacking.py', 'w') as file:
                    x = file.write('answer = 42')
                import lacking
            lacking.answer
            """
        self.assertEqual(self.run_ok(cell).result, "42")

    def test_it_comes_after_the_library_and_before_what_the_system_has(self):
        bare = subprocess.run(
            [sys.executable, "-sc", "import sys; print(sys.path[1:])"], capture_output=True, text=True, cwd="/"
        ).stdout
        library = [it for it in ast.literal_eval(bare) if not it.endswith("-packages")]
        for is_there in (False, True):
            if is_there:
                self.install("json.py")
            for flags in ("-I", "-IS"):
                with self.subTest(is_there=is_there, flags=flags):
                    self.start(flags)
                    self.assertEqual(self.run_ok("import json, sys; hasattr(json, 'answer')").result, "False")
                    path = ast.literal_eval(self.run_ok("sys.path").result)
                    at = path.index(self.place)
                    self.assertEqual(path[:at], ["", *library])
                    self.assertTrue(path[at + 1 :] and all(it.endswith("-packages") for it in path[at + 1 :]), path)

    def test_the_places_that_it_names_are_searched_too(self):
        self.install("linked.pth", self.home)
        with open(os.path.join(self.home, "linked.py"), "w") as file:
            file.write("answer = 42")
        self.start()
        self.assertEqual(self.run_ok("import linked; linked.answer").result, "42")


class CellTest(KernelTest):
    def test_matplotlib_draws_without_a_screen(self):
        self.assertEqual(self.run_ok("import os; os.environ['MPLBACKEND']").result, "'Agg'")

    def test_state_is_kept(self):
        self.run_ok("import math\nx = 20\ndef f(): return x + 1")
        self.assertEqual(self.run_ok("x += 1; f() + math.floor(0.5)").result, "22")

    def test_runs_as_main(self):
        self.run_ok("class C: pass")
        cell = self.run_ok("import pickle, sys; (__name__, sys.argv, pickle.loads(pickle.dumps(C)) is C)")
        self.assertEqual(cell.result, "('__main__', [''], True)")

    def test_result_is_the_last_expression(self):
        cases = [("1; 'a'", "'a'"), ("x = 1", None), ("None", None), ("", None), ("'doc'", "'doc'")]
        for code, result in cases:
            with self.subTest(code=code):
                self.assertEqual(self.run_ok(code).result, result)

    def test_what_only_looks_like_an_assignment_has_a_result(self):
        self.run_ok("x = y = 2\ndef f(**given): return given")
        cases = [
            ("x <= 1", "False"),
            ("x >= 1", "True"),
            ("x == 1", "False"),
            ("x != 1", "True"),
            ("x = 1; x", "1"),
            ("f(\nx = 3)", "{'x': 3}"),
            ("f(y = \nx)", "{'y': 1}"),
            ("\"\"\"\nx = 3\"\"\"", "'\\nx = 3'"),
            ("x \\\n== 1", "True"),
            ("f(\nx = [1][0])", "{'x': 1}"),
            ("x += 1", None),
            ("x <<= 1", None),
            ("x", "4"),
            ("x = \\\ny = 5", None),
            ("x, y", "(5, 5)"),
            ("y **= 2\n\nx = await f", "TypeError"),
        ]
        for code, result in cases:
            with self.subTest(code=code):
                cell = self.run_cell(code)
                self.assertEqual(cell.result or (cell.error and cell.error["name"]), result)

    def test_underscore_holds_the_last_result(self):
        self.run_ok("6 * 7")
        self.run_ok("None")
        self.assertEqual(self.run_ok("_ + 1").result, "43")

    def test_an_underscore_of_the_guests_own_is_left_alone(self):
        self.run_ok("from gettext import gettext as _")
        self.run_ok("6 * 7")
        self.assertEqual(self.run_ok("_('text')").result, "'text'")
        self.assertEqual(self.run_ok("del _; _").result, "'text'")

    def test_a_warning_is_shown_in_each_cell(self):
        for _ in range(2):
            cell = self.run_ok("import warnings\nfor _ in range(2): warnings.warn('careful')")
            self.assertEqual(cell.stderr.count("UserWarning: careful"), 1)

    def test_a_future_lasts(self):
        self.run_error("def f(x: nothing): pass", "NameError")
        self.run_ok("from __future__ import annotations")
        self.assertEqual(self.run_ok("def f(x: nothing): pass\nf.__annotations__").result, "{'x': 'nothing'}")
        self.run_error("from __future__ import nothing", "SyntaxError")
        self.assertEqual(self.run_ok("'__future__'").result, "'__future__'")
        self.run_ok("class C:\n x: nothing\nc = 1")

    def test_lone_surrogates_are_shown_as_escapes(self):
        cell = self.run_ok("class S:\n def __repr__(self): return 'é\\ud800\\n'\nprint('\\udc80'); S()")
        self.assertEqual((cell.result, cell.stdout), ("é\\ud800\n", "\\udc80\n"))
        cell = self.run_error("import os; raise ValueError(os.fsdecode(b'a\\xff'))", "ValueError")
        self.assertEqual(cell.error["message"], "a\\udcff")
        self.assertRegex(cell.error["traceback"], r"ValueError: a\\udcff\n$")

    def test_what_the_guest_makes_of_json_does_not_matter(self):
        self.run_ok("import json; json.dumps = lambda o: 'x'; json.JSONEncoder = None")
        self.assertEqual(self.run_ok("'a\\nb'").result, "'a\\nb'")
        self.run_ok("class R:\n def _repr_json_(self): return {'a': [1.5, True, None]}")
        self.assertEqual(self.show("R()"), [{"mime": "application/json", "data": {"a": [1.5, True, None]}}])

    def test_modules_of_the_working_directory_are_found(self):
        with tempfile.TemporaryDirectory() as directory:
            with open(os.path.join(directory, "helper.py"), "w") as file:
                file.write("answer = 42")
            host = self.new_host(cwd=directory)
            self.assertEqual(host.run("import helper; helper.answer").result, "42")

    def test_modules_of_the_working_directory_do_not_get_in_the_way(self):
        with tempfile.TemporaryDirectory() as directory:
            for name in ("linecache", "tokenize", "traceback", "textwrap", "reprlib", "kernel_output"):
                with open(os.path.join(directory, f"{name}.py"), "w") as file:
                    file.write("raise SystemError")
            host = self.new_host(cwd=directory)
            self.assertEqual(host.run("1 / 0").error["name"], "ZeroDivisionError")

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
        self.assertRegex(self.run_ok("{0: [[Counted()] * 1000] * 1000}").result, r"^\{0: \[\[c, c, .*\.\.\.")
        self.assertLess(int(self.run_ok("Counted.reprs").result), 100_000)
        self.run_ok("import tracemalloc; big = [0] * 10**6; tracemalloc.start()")
        self.run_ok("big")
        self.assertLess(int(self.run_ok("tracemalloc.get_traced_memory()[1]").result), 4_000_000)
        self.assertLessEqual(len(self.run_ok("'x' * 10**8").result), 64 << 10)
        self.assertLessEqual(len(self.run_ok("dict.fromkeys(range(10**6))").result), 64 << 10)

    def test_a_container_that_holds_itself_is_shown_once(self):
        self.assertEqual(self.run_ok("a = [1]; a.append(a); a").result, "[1, [...]]")
        self.assertEqual(self.run_ok("d = {}; d[1] = (a, d, a, d); d").result, "{1: ([1, [...]], {...}, [1, [...]], {...})}")
        self.assertLessEqual(len(self.run_ok("a *= 10**5; a").result), 64 << 10)

    def test_a_large_dict_is_shown_in_its_own_order(self):
        result = self.run_ok("{n: str(n) for n in range(10**5, 0, -1)}").result
        self.assertRegex(result, r"^{100000: '100000', 99999: '99999', .*, \.\.\.}$")
        result = self.run_ok("{1: [[{}] * 10**5], 2: {3: {4: {5: 6}}}}").result
        self.assertRegex(result, r"^{1: \[\[{}, {}, .*, \.\.\.\]\], 2: {3: {4: {\.\.\.}}}}$")

    def test_what_is_not_shown_whole_is_declared(self):
        self.run_ok("class Long:\n def __repr__(self): return 'a' * 70000")
        for code in ("Long()", "[0] * 10**5", "display(Long())", "raise ValueError('x' * 10**5)", "exit('x' * 10**5)"):
            with self.subTest(code=code):
                self.assertIs(self.run_cell(code).cut, True)
                self.assertIsNone(self.run_cell("1").cut)
                self.assertIsNone(self.run_cell("1 / 0").cut)

    def test_everything_printed_comes_before_done(self):
        cell = self.run_ok("import sys; print('a', end=''); print('b', end='', file=sys.stderr)")
        self.assertEqual((cell.stdout, cell.stderr), ("a", "b"))

    def test_output_of_c_code_comes_before_done(self):
        cell = self.run_ok("import ctypes; _ = ctypes.CDLL(None).printf(b'from c')")
        self.assertEqual(cell.stdout, "from c")

    def test_order_with_subprocesses_is_kept(self):
        cell = self.run_ok("import subprocess; print(1); _ = subprocess.run(['echo', '2']); print(3)")
        self.assertEqual(cell.stdout, "1\n2\n3\n")

    def test_so_is_that_of_parts_of_lines(self):
        ways = [
            "subprocess.run(['sh', '-c', 'printf 2; printf 2 >&2'])",
            "subprocess.run('printf 2; printf 2 >&2', shell=True, close_fds=False, preexec_fn=lambda: None)",
            "os.system('printf 2; printf 2 >&2')",
            "os.waitpid(os.posix_spawn('/bin/sh', ['sh', '-c', 'printf 2; printf 2 >&2'], {}), 0)",
            "os.spawnlp(os.P_WAIT, 'sh', 'sh', '-c', 'printf 2; printf 2 >&2')",
            "await (await asyncio.create_subprocess_shell('printf 2; printf 2 >&2')).wait()",
            "os.waitpid(os.fork() or os._exit(os.write(1, b'2') - os.write(2, b'2')), 0)",
        ]
        for flags in ("-I", "-IS"):
            self.host = self.new_host((sys.executable, flags, KERNEL))
            self.run_ok("import asyncio, os, subprocess, sys")
            for way in ways:
                with self.subTest(way=way, flags=flags):
                    cell = self.run_ok(f"print(1, end=''); print(1, end='', file=sys.stderr)\nx = {way}\nprint(3, end='')")
                    self.assertEqual((cell.stdout, cell.stderr), ("123", "12"))

    def test_a_forked_child_does_not_print_it_again(self):
        cell = self.run_ok("import os, sys; print(1, end=''); x = os.waitpid(os.fork() or sys.exit(), 0)")
        self.assertEqual(cell.stdout, "1")

    def test_children_do_not_mind_what_became_of_the_streams(self):
        self.run_ok("import io, os, subprocess, sys\nclass Odd:\n def flush(self): sys.exit(3)")
        for code in ("sys.stdout.close()", "sys.stdout = None", "del sys.stdout", "sys.stdout = Odd()", "sys.stdout.detach()"):
            with self.subTest(code=code):
                cell = self.run_ok(f"{code}; x = subprocess.run('echo 2', shell=True), os.system('echo 3')")
                self.assertEqual((cell.stdout, cell.stderr), ("2\n3\n", ""))

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
        exits = [("3", "3", 3), ("", "0", 0), ("'enough'", "enough", 1), ("False", "False", 0), ("'0'", "0", 1), ("-1", "-1", 255)]
        for given, message, number in exits:
            code = f"sys.exit({given})"
            with self.subTest(code=code):
                cell = self.run_cell(f"{code}\nx = 2")
                self.assertEqual(cell.status, "exited")
                self.assertEqual(cell.error, {"name": "SystemExit", "message": message, "traceback": "", "code": number})
        self.assertEqual(self.run_ok("x").result, "1")

    def test_a_hard_exit_is_the_end(self):
        self.host.start("import os; os._exit(7)")
        self.assertIsNone(self.host.frame())
        self.assertEqual(self.host.process.wait(DEADLINE_S), 7)

    def test_input_is_refused(self):
        self.run_ok("import sys")
        self.run_cell("exit()")  # closes sys.stdin
        streams = ("sys.stdin.read()", "sys.stdin.readline()", "list(sys.stdin)", "sys.stdin.buffer.read()")
        for code in ("input()", "input('name? ')", *streams):
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

    def test_context_variables_hold_for_the_next_cells(self):
        self.run_ok("import asyncio, contextvars; a, b = contextvars.ContextVar('a'), contextvars.ContextVar('b')")
        self.run_ok("x = a.set(1)")
        self.run_ok("x = a.set(a.get() + 1); await asyncio.sleep(0); x = b.set(1)")
        self.assertEqual(self.run_ok("x = b.set(b.get() + 1); a.get(), b.get()").result, "(2, 2)")
        self.assertEqual(self.run_ok("await asyncio.sleep(0); a.get(), b.get()").result, "(2, 2)")
        self.run_error("x = a.set(3); await asyncio.sleep(0); 1 / 0", "ZeroDivisionError")
        self.assertEqual(self.run_ok("a.get()").result, "3")
        self.run_ok("async def other(): a.set(4)")
        self.assertEqual(self.run_ok("await asyncio.gather(other()); a.get()").result, "3")

    def test_asyncio_run_still_works(self):
        self.run_ok("import asyncio\nasync def f(): return 1")
        self.assertEqual(self.run_ok("asyncio.run(f())").result, "1")
        self.assertEqual(self.run_ok("await f()").result, "1")

    def test_there_is_a_loop_behind_one_that_was_run_or_closed(self):
        self.run_ok("import asyncio, warnings; warnings.simplefilter('error')")
        ways = [
            "asyncio.run(asyncio.sleep(0))",
            "asyncio.set_event_loop(None)",
            "loop = asyncio.new_event_loop(); asyncio.set_event_loop(loop); loop.close()",
            "asyncio.get_event_loop().close()",
        ]
        for code in (*ways, *ways):
            with self.subTest(code=code):
                self.run_ok(code)
                self.assertEqual(self.run_ok("asyncio.get_event_loop().run_until_complete(asyncio.sleep(0, 5))").result, "5")
                self.run_ok("later = asyncio.get_event_loop().create_future(); later.set_result(6)")
                self.assertEqual(self.run_ok("await later").result, "6")

    def test_a_loop_that_a_cell_has_set_stays(self):
        self.run_ok("import asyncio; loop = asyncio.new_event_loop(); asyncio.set_event_loop(loop)")
        self.assertEqual(self.run_ok("asyncio.get_event_loop() is loop").result, "True")
        self.run_ok("await asyncio.sleep(0)")
        self.run_ok("asyncio.set_event_loop(loop)")
        self.assertEqual(self.run_ok("asyncio.get_event_loop() is loop").result, "True")

    def test_a_cell_may_break_asyncio(self):
        self.run_ok("import asyncio, sys; asyncio.events._event_loop_policy = 1; sys.modules['asyncio'] = None")
        self.run_ok("del sys.modules['asyncio.events']")
        self.assertEqual(self.run_ok("1").result, "1")

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

    def test_a_forgotten_await_is_made_good(self):
        self.run_ok("import asyncio, gc\nasync def f(x):\n await asyncio.sleep(0)\n return x")
        for code in ("f(1)", "x = 1\nf(x)", "await f(2)\nf(1)", "(lambda: f(1))()"):
            with self.subTest(code=code):
                cell = self.run_ok(code)
                self.assertEqual((cell.result, cell.stderr), ("1", ""))
        self.assertEqual(self.run_ok("_ + 1").result, "2")
        self.assertIsNone(self.run_ok("f(None)").result)
        self.assertEqual(self.run_ok("x = gc.collect()").stderr, "")
        host = self.new_host(WithoutSiteTest.COMMAND)
        self.assertEqual(host.run("async def f(): return 1\nf()").result, "1")

    def test_a_coroutine_that_can_be_awaited_later_is_left_alone(self):
        self.run_ok("import asyncio\nasync def f(x):\n await asyncio.sleep(0)\n return x")
        self.assertRegex(self.run_ok("c = f(1); c").result, "^<coroutine object f at ")
        self.assertEqual(self.run_ok("await c").result, "1")
        self.assertRegex(self.run_ok("[c][0]").result, "^<coroutine object f at ")  # it is over
        self.assertRegex(self.run_ok("kept = [f(1)]; x = kept[0].send(None); kept[0]").result, "^<coroutine object f at ")
        self.run_ok("kept.pop().close()")

    def test_whatever_holds_it(self):
        self.run_ok("import asyncio\nasync def f(x):\n await asyncio.sleep(0)\n return x")
        self.run_ok("class Job: pass\ndef keep(c): return lambda: c")
        holders = {
            "jobs = {'a': f(1)}": "jobs['a']",
            "jobs = [[f(1)]]": "jobs[0][0]",
            "job = Job(); job.work = f(1)": "job.work",
            "get = keep(f(1))": "get()",
        }
        for code, value in holders.items():
            for show in (value, f"await asyncio.sleep(0); {value}"):
                with self.subTest(code=code, show=show):
                    self.run_ok(code)
                    for _ in range(2):
                        self.assertRegex(self.run_ok(show).result, "^<coroutine object f at ")
                    cell = self.run_ok(f"await {value}")
                    self.assertEqual((cell.result, cell.stderr), ("1", ""))

    def test_a_forgotten_await_that_fails(self):
        cell = self.run_error("async def f():\n    raise ValueError('x')\nf()", "ValueError")
        expected = """\
            Traceback (most recent call last):
              File "<cell 1>", line 2, in f
                raise ValueError('x')
            ValueError: x
            """
        self.assertEqual(cell.traceback, textwrap.dedent(expected))
        cell = self.run_error("import asyncio; asyncio.wait_for(None, 1)", "TypeError")
        self.assertNotIn("run_until_complete", cell.traceback)

    def test_a_cell_that_awaits_nothing_can_start_tasks(self):
        self.run_ok("import asyncio\nasync def f(x):\n await asyncio.sleep(0)\n return x")
        ways = [
            "t = asyncio.create_task(f(1))",
            "from asyncio import ensure_future; t = ensure_future(f(1))",
            "t = ensure_future(f(1)); 5",
            "t = asyncio.get_running_loop().create_task(f(1))",
            "t = [asyncio.create_task(f(n)) for n in range(2)][1]",
            "t = list({asyncio.create_task(f(n)) for n in [1]})[0]",
            "t = dict((n, asyncio.create_task(f(n))) for n in [1])[1]",
            "if True:\n  t = asyncio.create_task(f(1))",
            "import asyncio as aio; t = aio.create_task(f(1))",
            "t = aio.create_task(f(1))",
            "from asyncio import create_task as start; t = start(f(1))",
            "from asyncio import *; t = create_task(f(1))",
            "t = asyncio.get_event_loop().create_task(f(1))",
            "import subprocess as s\ndef g(): s.run('true')\nt = asyncio.create_task(f(1)); x = s.run('true')",
        ]
        for code in ways:
            with self.subTest(code=code):
                self.run_ok(code)
                self.assertEqual(self.run_ok("t.done()").result, "False")
                self.assertEqual(self.run_ok("await t").result, "1")
        self.assertRegex(self.run_ok("asyncio.create_task(f(1))").result, "^<Task pending")
        self.assertEqual(self.run_error("t = asyncio.create_task(f(1)); 1 / 0", "ZeroDivisionError").traceback.count("File"), 1)

    def test_a_cell_that_runs_a_loop_of_its_own_is_left_alone(self):
        self.run_ok("import asyncio\nasync def f(x):\n await asyncio.create_task(asyncio.sleep(0))\n return x")
        for code in (
            "asyncio.run(f(1))",
            "loop = asyncio.new_event_loop(); t = loop.create_task(f(1)); loop.run_until_complete(t)",
            "class Client:\n  def create_task(self): return asyncio.run(f(1))\nclient = Client()",
            "client.create_task()",
        ):
            with self.subTest(code=code):
                self.assertIn(self.run_ok(code).result, ("1", None))

    def test_so_is_one_that_does_so_in_functions(self):
        head = "import asyncio\nasync def f(x):\n await asyncio.sleep(0)\n return x\n"
        for code in (
            "from asyncio import create_task\nasync def g(): return await create_task(f(1))\n"
            "def main(): return asyncio.run(g())\nmain()",
            "class Client:\n  def create_task(self): return asyncio.run(f(1))\nClient().create_task()",
            "def create_task(): return asyncio.run(f(1))\ncreate_task()",
            "def main():\n  def inner(): return asyncio.run(f(1))\n  return inner\n"
            "class C: create_task = staticmethod(main())\nC.create_task()",
        ):
            with self.subTest(code=code):
                self.assertEqual(self.new_host().run(head + code).result, "1")
