"""Errors and tracebacks of Python cells."""

import sys
import textwrap
import unittest

from kernel_host import NO_INPUT, KernelTest


class ErrorTest(KernelTest):
    def assert_traceback(self, cell, expected):
        self.assertEqual(cell.traceback, textwrap.dedent(expected).lstrip("\n"))

    def test_traceback_has_frames_of_several_cells(self):
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

    def test_traceback_has_no_frames_of_the_kernel(self):
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

    def test_chained_exceptions_are_shown(self):
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

    def test_syntax_error_has_a_caret(self):
        cell = self.run_error("x = 1\ny = = 2", "SyntaxError")
        self.assertEqual(
            cell.error["traceback"],
            '  File "<cell 1>", line 2\n    y = = 2\n        ^\nSyntaxError: invalid syntax\n',
        )

    def test_syntax_error_found_after_parsing_shows_its_line(self):
        cell = self.run_error("x = 1\nreturn x", "SyntaxError")
        self.assertEqual(
            cell.traceback,
            '  File "<cell 1>", line 2\n    return x\nSyntaxError: \'return\' outside function\n',
        )

    def test_notebook_magics_get_a_hint(self):
        hint = "hint: notebook magics are not available here: use execute_command, or subprocess\n"
        magics = [
            "!ls", "%timeit 1+1", "%%bash\necho 1", "%%bash\necho it's", "x = !ls", "a, b = !ls", "x = %time f()",
            "%matplotlib inline", "x = 1\nfor n in x:\n    !echo it's", "# first\n%%time\nx = 1",
        ]  # fmt: skip
        for code in magics:
            with self.subTest(code=code):
                trace = self.run_error(code, "SyntaxError").error["traceback"]
                self.assertRegex(trace, r'^  File "<cell \d+>", line \d\n(.*\n)+SyntaxError: .*\n' + hint + "$")
        others = [
            "x = 1\ny = = 2", "x = (1\n!= 2 3)", "x =", "(1\n% 2 3)", "x == !y", "eval('!ls')",
            "x = '!ls", "s = \"\"\"\n!ls\"\"\"\nx y",
        ]  # fmt: skip
        for code in others:
            with self.subTest(code=code):
                self.assertNotIn("hint", self.run_error(code, "SyntaxError").error["traceback"])
        self.assertRegex(self.run_cell("x = 1\0").error["traceback"], "null bytes\n$")

    def test_cell_with_a_syntax_error_does_not_run(self):
        self.run_error("x = 1\nprint(x)\n(await x for x in return)", "SyntaxError")
        self.run_error("x", "NameError")

    def test_source_is_available_to_guest_code(self):
        self.run_ok("import traceback")
        cell = self.run_ok("try:\n  raise ValueError(1)\nexcept ValueError:\n  traceback.print_exc()")
        self.assertIn("raise ValueError(1)", cell.stderr)
        self.run_ok("import inspect\ndef f(): return 1")
        self.assertEqual(self.run_ok("inspect.getsource(f)").result, "'def f(): return 1\\n'")

    def test_source_of_classes_is_found(self):
        self.run_ok("import dataclasses, inspect")
        plain = "class Plain:\n    x: int = 0\n"
        cases = {
            "Plain": plain,
            "Method": "class Method(Plain):\n    def f(self): return 1\n",
            "Data": "@dataclasses.dataclass\nclass Data:\n    y: str = ''\n",
        }
        self.run_ok(f"{plain.replace('0', '1')}")
        for name, text in cases.items():
            self.run_ok(f"before = 1\n{text}after = 1")
        self.run_ok("class Other:\n  class Plain: pass\nclass Plainer: pass\nborrowed = Method.f")
        self.run_error("class Plain: (", "SyntaxError")
        self.run_ok("class Borrower:\n    g = borrowed")
        for name, text in {**cases, "Borrower": "class Borrower:\n    g = borrowed\n"}.items():
            with self.subTest(name=name):
                self.assertEqual(self.run_ok(f"inspect.getsource({name})").result, repr(text))
        self.assertEqual(self.run_cell("inspect.getsource(type('Never', (), {}))").status, "error")
        self.run_error("inspect.getsource(int)", "TypeError")
        self.run_error("inspect.getsource(1)", "TypeError")

    def test_stack_begins_with_the_cell(self):
        self.run_ok("import asyncio, logging, traceback\ndef f():\n    traceback.print_stack()")
        expected = '  File "<cell {0}>", line 1, in <module>\n    {1}\n  File "<cell 1>", line 3, in f\n    traceback.print_stack()\n'
        for number, code in enumerate(("f()", "f(); await asyncio.sleep(0)"), 2):
            self.assertEqual(self.run_ok(code).stderr, expected.format(number, code))
        self.assertNotIn("kernel", self.run_ok("logging.warning('x', stack_info=True)").stderr)
        self.run_ok("class R:\n def __repr__(self): f(); return ''")
        for code, count in (("R()", 2), ("display(R())", 3)):
            self.assertEqual(self.run_ok(code).stderr.count("File "), count)
        names = "[frame.f_code.co_name for frame, _ in traceback.walk_stack(None)]"
        self.assertIn("<module>", self.run_ok(names).result)

    def test_exception_of_a_thread_is_shown_like_one_of_a_cell(self):
        code = "import threading\ndef f(n):\n    return 1 / n\nt = threading.Thread(target=f, args=(0,), name='T'); t.start(); t.join()"
        cell = self.run_ok(code)
        lines = [line for line in cell.stderr.splitlines() if line.strip(" ~^")]
        expected = ["Exception in thread T:", "Traceback (most recent call last):", '  File "<cell 1>", line 3, in f']
        self.assertEqual(lines, [*expected, "    return 1 / n", "ZeroDivisionError: division by zero"])
        run = "t = threading.Thread(target={}, name='T'); t.start(); t.join()"
        self.assertRegex(self.run_ok(run.format("f")).stderr, r"in run\nTypeError: f\(\) missing")
        self.assertEqual(self.run_ok("import sys; " + run.format("sys.exit")).stderr, "")
        self.run_ok("class Odd(Exception):\n def __str__(self): raise ValueError\ndef g(): raise Odd")
        self.assertRegex(self.run_ok(run.format("g")).stderr, "Exception in thread T:\n(.*\n)+.*Odd: <")
        self.assertEqual(self.run_ok("sys.stderr = None; " + run.format("g")).stderr, "")
        self.run_ok("threading.excepthook = lambda args: print('hook', args.exc_type.__name__)")
        self.assertEqual(self.run_ok(run.format("f")).stdout, "hook TypeError\n")

    def test_warning_about_a_coroutine_does_not_show_the_kernel(self):
        self.run_ok("async def fetch(): pass\ndef g():\n y = fetch()\n raise ValueError('q')")
        for _ in range(2):
            cell = self.run_error("g()", "ValueError")
            self.assertRegex(cell.stderr, "^sys:1: RuntimeWarning: coroutine 'fetch' was never awaited\n")
            self.assertNotIn("kernel", cell.stderr)
        cell = self.run_ok("import warnings\nx = fetch(); del x")
        self.assertRegex(cell.stderr, r"^<cell \d>:2: RuntimeWarning: coroutine 'fetch' was never awaited\n  x = fetch")

    def test_long_traceback_is_truncated_in_the_middle(self):
        self.run_ok("def f(n):\n  try: raise ValueError('x' * 400)\n  finally: f(n - 1) if n else g()")
        trace = self.run_error("f(300)", "NameError").error["traceback"]
        self.assertLessEqual(len(trace), 32 << 10)
        self.assertRegex(trace, r"^Traceback \(most recent call last\):\n")
        self.assertRegex(trace, r"\n… \d+ characters left out …\n")
        self.assertIn("\nNameError: name 'g' is not defined", trace)

    def test_long_message_is_truncated(self):
        error = self.run_error("raise ValueError('x' * 10**7)", "ValueError").error
        self.assertLessEqual(len(error["message"]), 32 << 10)

    def test_exception_that_cannot_be_printed_is_reported(self):
        self.run_ok("class Odd(Exception):\n def __str__(self): raise ValueError('no')")
        error = self.run_error("raise Odd", "Odd").error
        self.assertEqual(error["message"], "<str() failed: ValueError: no>")
        self.assertIn('File "<cell 2>", line 1', error["traceback"])

    def test_exit_in_the_text_of_an_exception_is_ignored(self):
        self.run_ok("import sys\nclass Odd(Exception):\n def __str__(self): sys.exit(3)")
        self.assertEqual(self.run_error("raise Odd", "Odd").error["message"], "<str() failed: SystemExit: 3>")
        self.run_ok("class Exit(SystemExit):\n def __str__(self): raise self")
        error = self.run_error("class Odder(Exception):\n def __str__(self): raise Exit\nraise Odder", "Odder").error
        self.assertEqual(error["message"], "<str() failed: Exit>")
        self.run_ok("class Quiet:\n def __repr__(self): sys.exit(3)")
        self.assertEqual(self.run_ok("Quiet()").result, "<repr() failed: SystemExit: 3>")

    def test_base_exceptions_are_reported(self):
        self.run_error("raise BaseException('x')", "BaseException")
        self.run_error("raise GeneratorExit", "GeneratorExit")

    @unittest.skipIf(sys.version_info < (3, 11), "exception groups came with Python 3.11")
    def test_exception_groups_are_shown(self):
        cell = self.run_error("raise ExceptionGroup('two', [ValueError(1), KeyError(2)])", "ExceptionGroup")
        self.assertIn("| KeyError: 2", cell.error["traceback"])
        self.assertNotIn("kernel.py", cell.error["traceback"])
