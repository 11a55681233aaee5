"""Tests of guest/kernel_output.py, through the kernel: errors, and rich output."""

import base64
import os
import sys
import tempfile
import textwrap
import unittest

from kernel_host import FRAME_LIMIT, NO_INPUT, KernelTest, needs

PNG = b"\x89PNG\r\n\x1a\n"


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
        self.assertEqual(
            cell.traceback,
            '  File "<cell 1>", line 2\n    return x\nSyntaxError: \'return\' outside function\n',
        )

    def test_notebook_magics_are_answered_with_a_hint(self):
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

    def test_nothing_runs_of_a_cell_that_does_not_compile(self):
        self.run_error("x = 1\nprint(x)\n(await x for x in return)", "SyntaxError")
        self.run_error("x", "NameError")

    def test_source_is_there_for_the_guests_own_tracebacks(self):
        self.run_ok("import traceback")
        cell = self.run_ok("try:\n  raise ValueError(1)\nexcept ValueError:\n  traceback.print_exc()")
        self.assertIn("raise ValueError(1)", cell.stderr)
        self.run_ok("import inspect\ndef f(): return 1")
        self.assertEqual(self.run_ok("inspect.getsource(f)").result, "'def f(): return 1\\n'")

    def test_source_of_classes(self):
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

    def test_a_stack_begins_with_its_cell(self):
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

    def test_what_ends_a_thread_is_told_as_what_ends_a_cell(self):
        code = "import threading\ndef f(n):\n    return 1 / n\nt = threading.Thread(target=f, args=(0,), name='T'); t.start(); t.join()"
        cell = self.run_ok(code)
        lines = [line for line in cell.stderr.splitlines() if line.strip(" ~^")]
        expected = ["Exception in thread T:", "Traceback (most recent call last):", '  File "<cell 1>", line 3, in f']
        self.assertEqual(lines, [*expected, "    return 1 / n", "ZeroDivisionError: division by zero"])
        run = "t = threading.Thread(target={}, name='T'); t.start(); t.join()"
        self.assertRegex(self.run_ok(run.format("f")).stderr, r"in run\n(.*\n)+TypeError: f\(\) missing")
        self.assertEqual(self.run_ok("import sys; " + run.format("sys.exit")).stderr, "")
        self.run_ok("class Odd(Exception):\n def __str__(self): raise ValueError\ndef g(): raise Odd")
        self.assertRegex(self.run_ok(run.format("g")).stderr, "Exception in thread T:\n(.*\n)+.*Odd: <")
        self.assertEqual(self.run_ok("sys.stderr = None; " + run.format("g")).stderr, "")
        self.run_ok("threading.excepthook = lambda args: print('mine', args.exc_type.__name__)")
        self.assertEqual(self.run_ok(run.format("f")).stdout, "mine TypeError\n")

    def test_a_coroutine_that_goes_with_an_error_is_told_of_without_the_kernel(self):
        self.run_ok("async def fetch(): pass\ndef g():\n y = fetch()\n raise ValueError('q')")
        for _ in range(2):
            cell = self.run_error("g()", "ValueError")
            self.assertRegex(cell.stderr, "^sys:1: RuntimeWarning: coroutine 'fetch' was never awaited\n")
            self.assertNotIn("kernel", cell.stderr)
        cell = self.run_ok("import warnings\nx = fetch(); del x")
        self.assertRegex(cell.stderr, r"^<cell \d>:2: RuntimeWarning: coroutine 'fetch' was never awaited\n  x = fetch")

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

    def test_an_exception_whose_text_wants_to_exit(self):
        self.run_ok("import sys\nclass Odd(Exception):\n def __str__(self): sys.exit(3)")
        self.assertEqual(self.run_error("raise Odd", "Odd").error["message"], "<str() failed: SystemExit: 3>")
        self.run_ok("class Exit(SystemExit):\n def __str__(self): raise self")
        error = self.run_error("class Odder(Exception):\n def __str__(self): raise Exit\nraise Odder", "Odder").error
        self.assertEqual(error["message"], "<str() failed: Exit>")
        self.run_ok("class Quiet:\n def __repr__(self): sys.exit(3)")
        self.assertEqual(self.run_ok("Quiet()").result, "<repr() failed: SystemExit: 3>")

    def test_exceptions_outside_of_exception(self):
        self.run_error("raise BaseException('x')", "BaseException")
        self.run_error("raise GeneratorExit", "GeneratorExit")

    @unittest.skipIf(sys.version_info < (3, 11), "exception groups came with Python 3.11")
    def test_exception_groups(self):
        cell = self.run_error("raise ExceptionGroup('two', [ValueError(1), KeyError(2)])", "ExceptionGroup")
        self.assertIn("| KeyError: 2", cell.error["traceback"])
        self.assertNotIn("kernel.py", cell.error["traceback"])


class DisplayTest(KernelTest):
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
            ("_repr_png_", repr(base64.encodebytes(PNG * 20).decode()), "image/png", base64.b64encode(PNG * 20).decode()),
            ("_repr_mimebundle_", repr({"image/png": f" {png}\r\n"}), "image/png", png),
            ("_repr_jpeg_", "b'j'", "image/jpeg", "ag=="),
            ("_repr_svg_", "'<svg/>'", "image/svg+xml", base64.b64encode(b"<svg/>").decode()),
            ("_repr_html_", "'<b>é</b>'", "text/html", "<b>é</b>"),
            ("_repr_markdown_", "'**é**'", "text/markdown", "**é**"),
            ("_repr_latex_", "'$x$'", "text/latex", "$x$"),
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

    def test_a_bundle_is_asked_for_as_by_others(self):
        wants = {
            "include, exclude": "str((include, exclude))",
            "include=None, exclude=None, **more": "str((include, exclude))",
            "**more": "str((more['include'], more['exclude']))",
            "*more": "str((None, None))",
            "": "str((None, None))",
        }
        for parameters, value in wants.items():
            with self.subTest(parameters=parameters):
                self.run_ok(f"class R:\n def _repr_mimebundle_(self, {parameters}): return {{'text/x': {value}}}")
                self.assertEqual(self.show("R()"), [{"mime": "text/x", "data": "(None, None)"}])
        self.run_ok("asked = []\nclass R:\n def _repr_mimebundle_(self, **_): asked.append(1); return 1 + ''")
        self.assertRegex(self.run_ok("R()").stderr, "^display: _repr_mimebundle_ of R failed: TypeError: unsupported")
        self.assertEqual(self.run_ok("asked").result, "[1]")

    def test_one_image_of_several(self):
        self.run_ok("class R:\n def _repr_png_(self): return b'p'\n def _repr_jpeg_(self): return b'j'")
        self.assertEqual([item["mime"] for item in self.show("R()")], ["image/png"])

    def test_one_markup_of_several(self):
        methods = ["_repr_latex_", "_repr_markdown_", "_repr_html_"]
        for count, mime in enumerate(("text/latex", "text/markdown", "text/html"), 1):
            offered = "".join(f" def {name}(self): return 'x'\n" for name in methods[:count])
            self.run_ok(f"class R:\n{offered}")
            self.assertEqual([item["mime"] for item in self.show("R()")], [mime])
        self.run_ok("class R:\n def _repr_html_(self): pass\n def _repr_markdown_(self): return 'x'")
        self.assertEqual([item["mime"] for item in self.show("R()")], ["text/markdown"])

    def test_an_object_that_shows_itself(self):
        self.run_ok("class R:\n def _ipython_display_(self): display(1, 2)\n def __repr__(self): return 'R'")
        shown = [{"mime": "text/plain", "data": "1"}, {"mime": "text/plain", "data": "2"}]
        cell = self.run_ok("R()")
        self.assertEqual((cell.result, cell.shown), ("R", shown))
        self.assertEqual(self.show("display(R())"), shown)
        self.run_ok("class Rich(R):\n def _repr_html_(self): return 'x'")
        self.assertEqual(self.show("Rich()"), [{"mime": "text/html", "data": "x"}])
        self.run_ok("class Failing(R):\n def _ipython_display_(self): import IPython_is_not_here")
        cell = self.run_ok("display(Failing())")
        self.assertEqual(cell.shown, [{"mime": "text/plain", "data": "R"}])
        self.assertRegex(cell.stderr, "^display: _ipython_display_ of Failing failed: ModuleNotFoundError: ")

    def test_a_class_and_an_object_with_every_attribute_are_not_rich(self):
        self.run_ok("class R:\n def _repr_html_(self): return 'x'")
        self.assertEqual(self.show("R"), [])
        self.assertEqual(self.show("import unittest.mock; unittest.mock.Mock()"), [])

    def test_a_rich_method_that_fails_or_declines(self):
        self.run_ok("class R:\n def _repr_html_(self): raise ValueError('no')\n def _repr_svg_(self): pass")
        cell = self.run_ok("R()")
        self.assertEqual(cell.shown, [])
        self.assertEqual(cell.stderr, "display: _repr_html_ of R failed: ValueError: no\n")
        self.run_ok("class Odd(Exception):\n def __str__(self): raise ValueError('no')")
        self.run_ok("class R:\n def _repr_html_(self): raise Odd")
        self.assertEqual(self.run_ok("R()").stderr, "display: _repr_html_ of R failed: Odd\n")

    def test_what_is_no_json_is_dropped(self):
        self.run_ok("deep, endless = [], []; endless.append(endless)\nfor _ in range(100): deep = [{'a': 1}, deep]")
        for value in ("float('nan')", "object()", "endless", "deep", "10**400", "{'a': [-(10**309)]}"):
            with self.subTest(value=value):
                self.run_ok(f"class R:\n def _repr_json_(self): return {value}")
                cell = self.run_ok("R()")
                self.assertEqual(cell.shown, [])
                self.assertRegex(cell.stderr, r"^display: application/json dropped: .*\n$")

    def test_json_as_deep_and_large_as_the_host_reads_it(self):
        self.run_ok("deep = []\nfor _ in range(98): deep = [deep]")
        self.run_ok("class R:\n def _repr_json_(self): return {'deep': deep, 'large': -10**300, 'text': '1' * 400}")
        (item,) = self.show("R()")
        self.assertEqual((item["data"]["large"], item["data"]["text"]), (-(10**300), "1" * 400))

    def test_lone_surrogates_are_shown_as_escapes(self):
        self.run_ok("class R:\n def _repr_html_(self): return 'é\\ud800'\n def _repr_json_(self): return {'\\udc80': ['\\udfff']}")
        html = {"mime": "text/html", "data": "é\\ud800"}
        self.assertEqual(self.show("R()"), [html, {"mime": "application/json", "data": {"\\udc80": ["\\udfff"]}}])

    def test_at_most_32_items_a_cell(self):
        for _ in range(2):
            cell = self.run_ok("for n in range(40): display(n)")
            self.assertEqual([item["data"] for item in cell.shown], [str(n) for n in range(32)])
            self.assertEqual(cell.stderr, "display: 8 items dropped: the limit is 32 per cell\n")

    def test_at_most_8_mib_an_item(self):
        self.run_ok("class R:\n size = 8 << 20\n def _repr_png_(self): return bytes(self.size)")
        cell = self.run_ok("display(R()); R.size += 1; display(R())")
        self.assertEqual([len(item["data"]) for item in cell.shown], [((8 << 20) + 2) // 3 * 4])
        note = "display: image/png dropped: ValueError: 8388609 bytes exceed the limit of 8388608\n"
        self.assertEqual(cell.stderr, note)

    def test_of_any_text(self):
        self.run_ok("class R:\n def _repr_html_(self): return text")
        for character in ("é", "猫", "\U0001f408"):
            with self.subTest(character=character):
                count = (8 << 20) // len(character.encode())
                (item,) = self.show(f"text = {character!r} * {count}; R()")
                self.assertTrue(item["data"] == character * count)

    def test_items_do_not_add_up(self):
        self.run_ok("class R:\n def _repr_mimebundle_(self): return {f'text/{n}': 'x' * (8 << 20) for n in range(3)}")
        self.assertEqual([len(item["data"]) for item in self.show("R()")], [8 << 20] * 3)

    def test_a_frame_that_escapes_make_too_large_is_dropped(self):
        for size in (FRAME_LIMIT // 6, 8 << 20):
            self.run_ok(f"class R:\n def _repr_html_(self): return chr(1) * {size}")
            cell = self.run_ok("R()")
            self.assertEqual(cell.shown, [])
            self.assertRegex(cell.stderr, r"^display: text/html dropped: ValueError: \d+ bytes")

    def test_nobody_to_be_told_what_was_dropped(self):
        self.run_ok("import sys\nclass Odd:\n def write(self, text): sys.exit(3)\n def flush(self): pass")
        for code in ("sys.stderr.close()", "sys.stderr = Odd()"):
            cell = self.run_ok(f"{code}\nfor n in range(40): display(n)")
            self.assertEqual(len(cell.shown), 32)

    def test_what_only_takes_the_place_of_pyplot(self):
        self.run_ok("import sys, unittest.mock; sys.modules['matplotlib.pyplot'] = unittest.mock.Mock()")
        self.assertRegex(self.run_ok("1").stderr, "^display: figures dropped: TypeError: ")
        self.run_ok("sys.modules['matplotlib.pyplot'].get_fignums = lambda: sys.exit(3)")
        self.assertRegex(self.run_ok("1").stderr, "^display: figures dropped: SystemExit: 3")

    def test_from_a_thread(self):
        self.run_ok("import threading; thread = threading.Thread(target=display, args=(1,))")
        cell = self.run_ok("thread.start(); thread.join()")
        self.assertEqual(cell.shown, [{"mime": "text/plain", "data": "1"}])

    def test_between_cells_it_is_dropped(self):
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "fifo")
            os.mkfifo(path)
            cell = f"""
                import threading
                def show_late():
                    open({path!r}).readline()
                    display(1)
                    print('shown')
                threading.Thread(target=show_late).start()
                """
            self.run_ok(cell)
            fifo = os.open(path, os.O_RDWR)
            os.write(fifo, b"now\n")
            self.host.await_output("shown")
            os.close(fifo)
        note = "display: text/plain dropped: ValueError: no cell is running\n"
        self.assertEqual(self.host.text(self.host.err), note)
        self.assertEqual(self.run_ok("1").shown, [])


class LibraryTest(KernelTest):
    """With the libraries that people draw and tabulate with."""

    def assert_png(self, item):
        self.assertEqual(item["mime"], "image/png")
        self.assertTrue(base64.b64decode(item["data"]).startswith(PNG))

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
        cell = self.run_ok("import matplotlib.pyplot as plt; plt.figure(); plt.figure(); plt.plot([1]); None")
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
        self.run_ok("import matplotlib.pyplot as plt")
        cell = self.run_error("plt.plot([1]); raise ValueError", "ValueError")
        self.assertEqual(len(cell.shown), 1)

    @needs("matplotlib")
    def test_figures_of_a_cell_that_exits_are_sent(self):
        self.run_ok("import matplotlib.pyplot as plt, os, sys")
        self.assertEqual(len(self.run_cell("plt.plot([1]); sys.exit()").shown), 1)
        child = "plt.plot([1]); pid = os.fork()\nif not pid: sys.exit()\nos.waitpid(pid, 0)[1]"
        cell = self.run_ok(child)
        self.assertEqual((cell.result, len(cell.shown), cell.stderr), ("0", 1, ""))

    @needs("matplotlib")
    def test_figures_of_a_cell_that_is_interrupted_are_not_shown_by_the_next(self):
        self.run_ok("import matplotlib.pyplot as plt, os, signal\nstop = lambda *_, **__: os.kill(os.getpid(), signal.SIGINT)")
        self.run_ok("class Slow:\n def __repr__(self): stop()")
        drawing = "plt.gcf().savefig = stop; x = plt.figure()"
        for code in ("stop()", "Slow()", drawing, "sys = __import__('sys'); sys.stderr.close(); stop()"):
            with self.subTest(code=code):
                cell = self.run_cell(f"x = plt.plot([1]); {code}")
                self.assertEqual((cell.status, cell.shown), ("interrupted", []))
                note = "display: figures dropped: the cell was interrupted before all were shown\n"
                self.assertEqual(cell.stderr, "" if "close" in code else note)
                cell = self.run_ok("plt.get_fignums()")
                self.assertEqual((cell.result, cell.shown), ("[]", []))
        self.assertEqual(self.run_cell("plt.plot([1]); plt.show(); stop()").stderr, "")

    @needs("matplotlib")
    def test_a_figure_that_cannot_be_drawn(self):
        cell = self.run_ok("import matplotlib.pyplot as plt; plt.title('$\\\\frac$'); None")
        self.assertEqual(cell.shown, [])
        self.assertRegex(cell.stderr, r"^display: figure dropped: ")
        self.assertEqual(self.run_ok("plt.get_fignums()").stderr, "")

    @needs("numpy")
    def test_array(self):
        self.assertEqual(self.run_ok("import numpy; numpy.zeros(2)").result, "array([0., 0.])")
