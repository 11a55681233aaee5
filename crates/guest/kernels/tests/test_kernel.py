"""The Python kernel: its protocol, and state, results and output of cells."""

import os
import socket
import subprocess
import sys
import tempfile
import time

from kernel_host import KERNEL, NO_INPUT, TIMEOUT_S, WITHOUT_SITE, KernelTest, request


class ProtocolTest(KernelTest):
    def test_sends_ready_once(self):
        version = ".".join(map(str, sys.version_info[:3]))
        self.assertEqual(self.ready, {"type": "ready", "language": "python", "version": version})
        self.assertEqual(self.run_ok("1").keys, ["error", "id", "result", "status", "type"])

    def test_ends_when_the_host_closes_the_socket(self):
        self.run_ok("import threading, time; threading.Thread(target=time.sleep, args=(1000,)).start()")
        self.host.socket.shutdown(socket.SHUT_WR)
        self.assertEqual(self.host.process.wait(TIMEOUT_S), 0)

    def test_rejects_an_oversized_frame_and_continues(self):
        self.run_ok("x = 1")
        size = (16 << 20) + 1
        self.host.send(b" " * size)
        message = f"frame of {size} bytes exceeds the limit of {16 << 20}"
        self.assertEqual(self.host.frame(), {"type": "rejected", "id": None, "message": message})
        self.assertEqual(self.run_ok("x").result, "1")

    def test_accepts_a_frame_at_the_limit(self):
        self.host.cells = 1
        self.host.send(request(101, "6 * 7").ljust(16 << 20))
        self.assertEqual(self.host.finish().result, "42")

    def test_rejects_invalid_frames(self):
        for body in (b"", b"1234567", request(1, "") + b"\xff"):
            with self.subTest(body=body):
                self.host.send(body)
                self.assertEqual(self.host.frame()["type"], "rejected")
        self.assertEqual(self.run_ok("1").result, "1")

    def test_output_does_not_reach_the_control_channel(self):
        cell = self.run_ok("print('{\"type\": \"done\"}'); 5")
        self.assertEqual((cell.stdout, cell.stderr, cell.result), ('{"type": "done"}\n', "", "5"))

    def test_subprocesses_do_not_inherit_the_socket(self):
        listing = "['ls', '-l', '/proc/self/fd']"
        cell = self.run_ok(f"import subprocess; _ = subprocess.run({listing}, close_fds=False)")
        self.assertIn("pipe:", cell.stdout)
        self.assertNotIn("socket:", cell.stdout)

    def test_socket_has_a_high_descriptor(self):
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

    def test_starts_with_a_low_limit_of_open_files(self):
        command = ("sh", "-c", 'ulimit -n 100; exec "$0" "$@"', sys.executable, "-I", KERNEL)
        host = self.new_host(command)
        host.run("import os; os.closerange(3, 60)")
        self.assertEqual(host.run("1").result, "1")

    def test_closing_the_socket_ends_only_this_kernel(self):
        other = self.new_host()
        self.host.start("import os; os.closerange(3, 4096)")
        self.assertIsNone(self.host.frame())
        self.assertEqual(self.host.process.wait(TIMEOUT_S), 1)
        self.assertEqual(other.run("1").result, "1")

    def test_garbage_on_the_socket_affects_only_its_own_stream(self):
        other = self.new_host()
        find = """
            import os
            sockets = [fd for fd in range(3, 4096) if os.path.exists(f'/proc/self/fd/{fd}')
                and os.readlink(f'/proc/self/fd/{fd}').startswith('socket:')]
            os.write(sockets[0], b'\\xff' * 40)
            """
        self.host.start(find)
        deadline = time.monotonic() + TIMEOUT_S
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
                timeout=TIMEOUT_S,
            ).stdout.split()
            for first in ("pass", load)  # `site` has imports too
        ]
        self.assertIn("fcntl", loaded[1])
        self.assertEqual(heavy & (set(loaded[1]) - set(loaded[0])), set())


class CellTest(KernelTest):
    def test_matplotlib_draws_without_a_screen(self):
        self.assertEqual(self.run_ok("import os; os.environ['MPLBACKEND']").result, "'Agg'")

    def test_preloaded_modules_are_imported_and_nothing_else_is_visible(self):
        for command in ((sys.executable, "-I", KERNEL), WITHOUT_SITE):
            with self.subTest(command=command):
                host = self.new_host(command)
                host.cells += 1
                host.send(request((1 << 61) | (100 + host.cells), "no_such_module colorsys"))
                preloaded = host.finish()
                self.assertEqual((preloaded.status, preloaded.result, preloaded.error), ("ok", None, None))
                cell = host.run("__import__('sys').modules.keys() >= {'colorsys'}, sorted(n for n in dir() if n[0] != '_')")
                self.assertEqual((cell.result, cell.stdout, cell.stderr), ("(True, [])", "", ""))
                self.assertIn("<cell 2>", host.run("1 / 0").traceback)

    def test_state_persists(self):
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

    def test_expressions_that_look_like_assignments_have_a_result(self):
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

    def test_underscore_is_the_last_result(self):
        self.run_ok("6 * 7")
        self.run_ok("None")
        self.assertEqual(self.run_ok("_ + 1").result, "43")

    def test_underscore_of_the_guest_is_not_replaced(self):
        self.run_ok("from gettext import gettext as _")
        self.run_ok("6 * 7")
        self.assertEqual(self.run_ok("_('text')").result, "'text'")
        self.assertEqual(self.run_ok("del _; _").result, "'text'")

    def test_warning_is_shown_in_each_cell(self):
        for _ in range(2):
            cell = self.run_ok("import warnings\nfor _ in range(2): warnings.warn('careful')")
            self.assertEqual(cell.stderr.count("UserWarning: careful"), 1)

    def test_future_imports_apply_to_later_cells(self):
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

    def test_replaced_json_module_does_not_matter(self):
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

    def test_modules_of_the_working_directory_are_not_imported_by_the_kernel(self):
        with tempfile.TemporaryDirectory() as directory:
            for name in ("linecache", "tokenize", "traceback", "textwrap", "reprlib", "kernel_output"):
                with open(os.path.join(directory, f"{name}.py"), "w") as file:
                    file.write("raise SystemError")
            host = self.new_host(cwd=directory)
            self.assertEqual(host.run("1 / 0").error["name"], "ZeroDivisionError")

    def test_failing_repr_is_reported(self):
        self.run_ok("class Bad:\n def __repr__(self): raise ValueError('no')")
        self.assertEqual(self.run_ok("Bad()").result, "<repr() failed: ValueError: no>")
        self.run_ok("class Deep:\n def __repr__(self): return repr(self)")
        self.assertRegex(self.run_ok("Deep()").result, "^<repr.. failed: RecursionError: ")
        self.run_ok("class No:\n def __repr__(self): return 5")
        self.assertRegex(self.run_ok("No()").result, "^<repr.. failed: TypeError: ")

    def test_long_repr_is_truncated_in_the_middle(self):
        cell = self.run_ok("class Long:\n def __repr__(self): return 'a' * 70000 + 'b' * 70000\nLong()")
        self.assertLessEqual(len(cell.result), 64 << 10)
        self.assertGreater(len(cell.result), 60 << 10)
        self.assertRegex(cell.result, r"^a+\n… \d+ characters left out …\nb+$")

    def test_huge_containers_are_not_rendered_completely(self):
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

    def test_recursive_container_is_shown_once(self):
        self.assertEqual(self.run_ok("a = [1]; a.append(a); a").result, "[1, [...]]")
        self.assertEqual(self.run_ok("d = {}; d[1] = (a, d, a, d); d").result, "{1: ([1, [...]], {...}, [1, [...]], {...})}")
        self.assertLessEqual(len(self.run_ok("a *= 10**5; a").result), 64 << 10)

    def test_large_dict_keeps_its_order(self):
        result = self.run_ok("{n: str(n) for n in range(10**5, 0, -1)}").result
        self.assertRegex(result, r"^{100000: '100000', 99999: '99999', .*, \.\.\.}$")
        result = self.run_ok("{1: [[{}] * 10**5], 2: {3: {4: {5: 6}}}}").result
        self.assertRegex(result, r"^{1: \[\[{}, {}, .*, \.\.\.\]\], 2: {3: {4: {\.\.\.}}}}$")

    def test_truncated_results_are_marked(self):
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

    def test_output_is_in_order_with_subprocesses(self):
        cell = self.run_ok("import subprocess; print(1); _ = subprocess.run(['echo', '2']); print(3)")
        self.assertEqual(cell.stdout, "1\n2\n3\n")

    def test_incomplete_lines_are_in_order_with_children(self):
        starts = [
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
            for start in starts:
                with self.subTest(start=start, flags=flags):
                    cell = self.run_ok(f"print(1, end=''); print(1, end='', file=sys.stderr)\nx = {start}\nprint(3, end='')")
                    self.assertEqual((cell.stdout, cell.stderr), ("123", "12"))

    def test_forked_child_does_not_repeat_buffered_output(self):
        cell = self.run_ok("import os, sys; print(1, end=''); x = os.waitpid(os.fork() or sys.exit(), 0)")
        self.assertEqual(cell.stdout, "1")

    def test_children_start_with_broken_streams(self):
        self.run_ok("import io, os, subprocess, sys\nclass Odd:\n def flush(self): sys.exit(3)")
        for code in ("sys.stdout.close()", "sys.stdout = None", "del sys.stdout", "sys.stdout = Odd()", "sys.stdout.detach()"):
            with self.subTest(code=code):
                cell = self.run_ok(f"{code}; x = subprocess.run('echo 2', shell=True), os.system('echo 3')")
                self.assertEqual((cell.stdout, cell.stderr), ("2\n3\n", ""))

    def test_large_output_of_a_subprocess_arrives_completely(self):
        cell = self.run_ok("import subprocess; _ = subprocess.run(['head', '-c', '3000000', '/dev/zero'])")
        self.assertEqual(len(cell.stdout), 3_000_000)

    def test_threads_run_between_cells(self):
        self.run_ok(
            """
            import threading
            start, ended = threading.Event(), threading.Event()
            threading.Thread(target=lambda: (start.wait(), ended.set())).start()
            """
        )
        self.assertEqual(self.run_ok("start.set(); ended.wait(30)").result, "True")

    def test_exit_ends_only_the_cell(self):
        self.run_ok("x = 1; import sys")
        exits = [("3", "3", 3), ("", "0", 0), ("'enough'", "enough", 1), ("False", "False", 0), ("'0'", "0", 1), ("-1", "-1", 255)]
        for given, message, number in exits:
            code = f"sys.exit({given})"
            with self.subTest(code=code):
                cell = self.run_cell(f"{code}\nx = 2")
                self.assertEqual(cell.status, "exited")
                self.assertEqual(cell.error, {"name": "SystemExit", "message": message, "traceback": "", "code": number})
        self.assertEqual(self.run_ok("x").result, "1")

    def test_os_exit_ends_the_kernel(self):
        self.host.start("import os; os._exit(7)")
        self.assertIsNone(self.host.frame())
        self.assertEqual(self.host.process.wait(TIMEOUT_S), 7)

    def test_input_is_refused(self):
        self.run_ok("import sys")
        self.run_cell("exit()")  # closes sys.stdin
        streams = ("sys.stdin.read()", "sys.stdin.readline()", "list(sys.stdin)", "sys.stdin.buffer.read()")
        for code in ("input()", "input('name? ')", *streams):
            with self.subTest(code=code):
                self.assertEqual(self.run_error(code, "RuntimeError").error["message"], NO_INPUT)
