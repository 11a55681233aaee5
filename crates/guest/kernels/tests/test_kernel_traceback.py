"""Tracebacks of Python cells: frames of libraries, recursion, limits, hints."""

import os
import tempfile

from kernel_host import KernelTest, needs


class TracebackTest(KernelTest):
    def write_library(self, **modules):
        """Writes modules into a directory that looks like one of installed packages, and puts it on the path."""
        self.directory = tempfile.TemporaryDirectory()
        self.addCleanup(self.directory.cleanup)
        packages = os.path.join(self.directory.name, "site-packages")
        os.mkdir(packages)
        for name, text in modules.items():
            with open(os.path.join(packages, f"{name}.py"), "w") as file:
                file.write(text)
        self.run_ok(f"import sys; sys.path.insert(0, {packages!r})")
        return packages

    def test_library_frames_are_one_line_each(self):
        packages = self.write_library(thing="def call(f):\n    return f()\n")
        self.run_ok("import thing\ndef inner():\n    return 1 / 0\ndef outer():\n    return thing.call(inner)")
        expected = f"""\
Traceback (most recent call last):
  File "<cell 3>", line 1, in <module>
    outer()
  File "<cell 2>", line 5, in outer
    return thing.call(inner)
  File "{packages}/thing.py", line 2, in call
  File "<cell 2>", line 3, in inner
    return 1 / 0
ZeroDivisionError: division by zero
"""
        self.assertEqual(self.run_error("outer()", "ZeroDivisionError").traceback, expected)

    def test_long_runs_of_library_frames_are_folded(self):
        down = "def down(n, f):\n    return down(n - 1, f) if n else f()\n"
        packages = self.write_library(thing=down, other=down)
        trace = self.run_error("import thing, other\nthing.down(5, lambda: other.down(2, lambda: 1 / 0))", "ZeroDivisionError").traceback
        self.assertEqual([trace.count(f"{packages}/{name}.py") for name in ("thing", "other")], [2, 3], trace)
        self.assertIn("\n  … 4 frames of thing …\n", trace)
        code = "import functools, json\nother.down(3, functools.partial(json.loads, '{'))"
        trace = self.run_error(code, "JSONDecodeError").traceback
        self.assertRegex(trace, r"\n  … \d frames of other, json …\n  File \".*/json/decoder.py\", line \d+, in raw_decode\njson")

    def test_recursion_is_folded(self):
        self.run_ok("def f(n): f(n + 1)")
        trace = self.run_error("f(0)", "RecursionError").traceback
        self.assertRegex(trace, r'line 1, in f\n    def f\(n\): f\(n \+ 1\)\n  \[Previous line repeated \d+ more times\]\nRecursionError')
        self.run_ok("def g(n):\n  h(n)\ndef h(n):\n  g(n + 1)")
        trace = self.run_error("g(0)", "RecursionError").traceback
        self.assertRegex(trace, r"\n  \[Previous 2 frames repeated \d+ more times\]\n")
        self.assertLess(len(trace), 500)
        packages = self.write_library(thing="def call(f, n):\n    return f(n)\n")
        self.run_ok("import thing\ndef k(n):\n  thing.call(k, n + 1)")
        trace = self.run_error("k(0)", "RecursionError").traceback
        self.assertEqual(trace.count(f"{packages}/thing.py"), 1, trace)

    def test_number_of_frames_and_length_of_lines_are_limited(self):
        functions = "\n".join(f"def f{n}(): f{n + 1}()" for n in range(200))
        self.run_ok(f"{functions}\ndef f200(): return 1 / 0 or '{'x' * 100_000}'")
        trace = self.run_error("f0()", "ZeroDivisionError").traceback
        self.assertLess(len(trace), 8_000)
        self.assertIn("in f0\n", trace)
        self.assertIn("in f200\n", trace)
        self.assertRegex(trace, r"\n  … \d+ frames left out …\n")

    def test_frames_of_causes_and_of_groups_are_folded(self):
        self.write_library(thing="def down(n, f):\n    return down(n - 1, f) if n else f()\n")
        code = "import thing\ntry: thing.down(9, lambda: 1 / 0)\nexcept ZeroDivisionError as error: raise ValueError from error"
        trace = self.run_error(code, "ValueError").traceback
        self.assertIn("\n  … 8 frames of thing …\n", trace)
        self.assertIn("\nThe above exception was the direct cause of the following exception:\n", trace)

    @needs("pandas")
    def test_traceback_of_pandas_is_short(self):
        trace = self.run_error("import pandas\npandas.DataFrame({'a': [1], 'b': [2]}).groupby('b').agg(lambda column: column['x'])", "KeyError").traceback
        self.assertLess(len(trace), 2_500)
        self.assertRegex(trace, r"\n  … \d+ frames of pandas.* …\n")

    def test_syntax_error_points_at_the_line(self):
        trace = self.run_error("x = 1\ny = = 2", "SyntaxError").error["traceback"]
        self.assertRegex(trace, r'File "<cell 1>", line 2\n    y = = 2\n        \^\nSyntaxError: invalid syntax')

    def test_missing_server_has_a_hint(self):
        for code in ("await mcp_git_hub.search()", "def f(): return mcp_git_hub\nf()", "mcp_git_hub.x = 1"):
            with self.subTest(code=code):
                trace = self.run_error(code, "NameError").error["traceback"]
                self.assertRegex(trace, r"\nNameError: .*\nhint: pass servers=\[\"git_hub\"\] with the code\n$")
        for code in ("mcp_", "mcp__", "mcpx_time", "mcp_é", "raise NameError('mcp_time')", "raise NameError"):
            with self.subTest(code=code):
                self.assertNotIn("hint", self.run_error(code, "NameError").error["traceback"])
