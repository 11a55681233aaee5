"""Rich output of Python cells."""

import base64
import os
import tempfile

from kernel_host import MAX_FRAME_BYTES, KernelTest, needs

PNG = b"\x89PNG\r\n\x1a\n"


class DisplayTest(KernelTest):
    def setUp(self):
        super().setUp()
        self.host.wants_html = True

    def test_html_copy_of_a_text_is_sent_on_request(self):
        self.run_ok("class Table:\n def _repr_html_(self): return '<b>'\n def __repr__(self): return 'a  b'")
        self.run_ok("class Chart:\n def _repr_html_(self): return '<b>'")
        html, text = {"mime": "text/html", "data": "<b>"}, {"mime": "text/plain", "data": "a  b"}
        self.assertEqual((self.show("Table()"), self.show("display(Table())")), ([html], [html, text]))
        self.host.wants_html = False
        self.assertEqual((self.show("Table()"), self.show("display(Table())")), ([], [text]))
        self.assertEqual(self.show("Chart()"), [html])
        self.assertEqual(self.show("display(Chart())")[0], html)
        self.run_ok("class Both(Table):\n def _repr_mimebundle_(self, **_): return {'text/html': 'x', 'text/x': 'y'}")
        self.assertEqual(self.show("Both()"), [{"mime": "text/x", "data": "y"}])

    def test_value_without_rich_form_is_text(self):
        self.assertEqual(
            self.show("display(1, 'a')"),
            [{"mime": "text/plain", "data": "1"}, {"mime": "text/plain", "data": "'a'"}],
        )

    def test_rich_methods_are_used(self):
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

    def test_bundle_method_gets_the_arguments_of_ipython(self):
        signatures = {
            "include, exclude": "str((include, exclude))",
            "include=None, exclude=None, **more": "str((include, exclude))",
            "**more": "str((more['include'], more['exclude']))",
            "*more": "str((None, None))",
            "": "str((None, None))",
        }
        for parameters, value in signatures.items():
            with self.subTest(parameters=parameters):
                self.run_ok(f"class R:\n def _repr_mimebundle_(self, {parameters}): return {{'text/x': {value}}}")
                self.assertEqual(self.show("R()"), [{"mime": "text/x", "data": "(None, None)"}])
        self.run_ok("calls = []\nclass R:\n def _repr_mimebundle_(self, **_): calls.append(1); return 1 + ''")
        self.assertRegex(self.run_ok("R()").stderr, "^display: _repr_mimebundle_ of R failed: TypeError: unsupported")
        self.assertEqual(self.run_ok("calls").result, "[1]")

    def test_first_of_several_images_is_shown(self):
        self.run_ok("class R:\n def _repr_png_(self): return b'p'\n def _repr_jpeg_(self): return b'j'")
        self.assertEqual([item["mime"] for item in self.show("R()")], ["image/png"])

    def test_first_of_several_markups_is_shown(self):
        methods = ["_repr_latex_", "_repr_markdown_", "_repr_html_"]
        for count, mime in enumerate(("text/latex", "text/markdown", "text/html"), 1):
            offered = "".join(f" def {name}(self): return 'x'\n" for name in methods[:count])
            self.run_ok(f"class R:\n{offered}")
            self.assertEqual([item["mime"] for item in self.show("R()")], [mime])
        self.run_ok("class R:\n def _repr_html_(self): pass\n def _repr_markdown_(self): return 'x'")
        self.assertEqual([item["mime"] for item in self.show("R()")], ["text/markdown"])

    def test_object_can_show_itself(self):
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

    def test_class_and_mock_are_not_rich(self):
        self.run_ok("class R:\n def _repr_html_(self): return 'x'")
        self.assertEqual(self.show("R"), [])
        self.assertEqual(self.show("import unittest.mock; unittest.mock.Mock()"), [])

    def test_failing_rich_method_is_reported(self):
        self.run_ok("class R:\n def _repr_html_(self): raise ValueError('no')\n def _repr_svg_(self): pass")
        cell = self.run_ok("R()")
        self.assertEqual(cell.shown, [])
        self.assertEqual(cell.stderr, "display: _repr_html_ of R failed: ValueError: no\n")
        self.run_ok("class Odd(Exception):\n def __str__(self): raise ValueError('no')")
        self.run_ok("class R:\n def _repr_html_(self): raise Odd")
        self.assertEqual(self.run_ok("R()").stderr, "display: _repr_html_ of R failed: Odd\n")

    def test_invalid_json_is_dropped(self):
        self.run_ok("deep, endless = [], []; endless.append(endless)\nfor _ in range(100): deep = [{'a': 1}, deep]")
        for value in ("float('nan')", "object()", "endless", "deep", "10**400", "{'a': [-(10**309)]}"):
            with self.subTest(value=value):
                self.run_ok(f"class R:\n def _repr_json_(self): return {value}")
                cell = self.run_ok("R()")
                self.assertEqual(cell.shown, [])
                self.assertRegex(cell.stderr, r"^display: application/json dropped: .*\n$")

    def test_json_at_the_limits_is_shown(self):
        self.run_ok("deep = []\nfor _ in range(98): deep = [deep]")
        self.run_ok("class R:\n def _repr_json_(self): return {'deep': deep, 'large': -10**300, 'text': '1' * 400}")
        (item,) = self.show("R()")
        self.assertEqual((item["data"]["large"], item["data"]["text"]), (-(10**300), "1" * 400))

    def test_lone_surrogates_are_shown_as_escapes(self):
        self.run_ok("class R:\n def _repr_html_(self): return 'é\\ud800'\n def _repr_json_(self): return {'\\udc80': ['\\udfff']}")
        html = {"mime": "text/html", "data": "é\\ud800"}
        self.assertEqual(self.show("R()"), [html, {"mime": "application/json", "data": {"\\udc80": ["\\udfff"]}}])

    def test_items_are_limited_to_32_per_cell(self):
        for _ in range(2):
            cell = self.run_ok("for n in range(40): display(n)")
            self.assertEqual([item["data"] for item in cell.shown], [str(n) for n in range(32)])
            self.assertEqual(cell.stderr, "display: 8 items dropped: the limit is 32 per cell\n")

    def test_items_are_limited_to_8_mib(self):
        self.run_ok("class R:\n size = 8 << 20\n def _repr_png_(self): return bytes(self.size)")
        cell = self.run_ok("display(R()); R.size += 1; display(R())")
        self.assertEqual([len(item["data"]) for item in cell.shown], [((8 << 20) + 2) // 3 * 4])
        note = "display: image/png dropped: ValueError: 8388609 bytes exceed the limit of 8388608\n"
        self.assertEqual(cell.stderr, note)

    def test_text_item_has_the_maximum_size_in_bytes(self):
        self.run_ok("class R:\n def _repr_html_(self): return text")
        for character in ("é", "猫", "\U0001f408"):
            with self.subTest(character=character):
                count = (8 << 20) // len(character.encode())
                (item,) = self.show(f"text = {character!r} * {count}; R()")
                self.assertTrue(item["data"] == character * count)

    def test_size_limit_applies_to_each_item(self):
        self.run_ok("class R:\n def _repr_mimebundle_(self): return {f'text/{n}': 'x' * (8 << 20) for n in range(3)}")
        self.assertEqual([len(item["data"]) for item in self.show("R()")], [8 << 20] * 3)

    def test_item_that_is_too_large_after_escaping_is_dropped(self):
        for size in (MAX_FRAME_BYTES // 6, 8 << 20):
            self.run_ok(f"class R:\n def _repr_html_(self): return chr(1) * {size}")
            cell = self.run_ok("R()")
            self.assertEqual(cell.shown, [])
            self.assertRegex(cell.stderr, r"^display: text/html dropped: ValueError: \d+ bytes")

    def test_items_are_dropped_without_stderr(self):
        self.run_ok("import sys\nclass Odd:\n def write(self, text): sys.exit(3)\n def flush(self): pass")
        for code in ("sys.stderr.close()", "sys.stderr = Odd()"):
            cell = self.run_ok(f"{code}\nfor n in range(40): display(n)")
            self.assertEqual(len(cell.shown), 32)

    def test_replaced_pyplot_is_reported(self):
        self.run_ok("import sys, unittest.mock; sys.modules['matplotlib.pyplot'] = unittest.mock.Mock()")
        self.assertRegex(self.run_ok("1").stderr, "^display: figures dropped: TypeError: ")
        self.run_ok("sys.modules['matplotlib.pyplot'].get_fignums = lambda: sys.exit(3)")
        self.assertRegex(self.run_ok("1").stderr, "^display: figures dropped: SystemExit: 3")

    def test_thread_can_display(self):
        self.run_ok("import threading; thread = threading.Thread(target=display, args=(1,))")
        cell = self.run_ok("thread.start(); thread.join()")
        self.assertEqual(cell.shown, [{"mime": "text/plain", "data": "1"}])

    def test_display_between_cells_is_dropped(self):
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
    """Display of common libraries; skipped if one is not installed."""

    def assert_png(self, item):
        self.assertEqual(item["mime"], "image/png")
        self.assertTrue(base64.b64decode(item["data"]).startswith(PNG))

    @needs("PIL")
    def test_pillow_image_is_shown(self):
        self.run_ok("from PIL import Image; image = Image.new('RGB', (4, 4))")
        for code in ("image", "display(image)"):
            (item,) = self.run_ok(code).shown
            self.assert_png(item)

    @needs("pandas")
    def test_data_frame_is_shown(self):
        self.run_ok("import pandas; frame = pandas.DataFrame({'a': [1]})")
        self.assertEqual((self.show("frame"), len(self.show("display(frame)"))), ([], 1))
        self.host.wants_html = True
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
    def test_figure_is_sent_once(self):
        self.run_ok("import matplotlib.pyplot as plt")
        for code in ("plt.figure()", "f = plt.figure(); display(f); f", "plt.plot([1]); plt.show()"):
            with self.subTest(code=code):
                self.assertEqual(len(self.show(code)), 1 + code.endswith("; f"))

    @needs("matplotlib")
    def test_show_starts_a_new_figure(self):
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
    def test_figures_of_a_failing_cell_are_sent(self):
        self.run_ok("import matplotlib.pyplot as plt")
        cell = self.run_error("plt.plot([1]); raise ValueError", "ValueError")
        self.assertEqual(len(cell.shown), 1)

    @needs("matplotlib")
    def test_figures_of_an_exiting_cell_are_sent(self):
        self.run_ok("import matplotlib.pyplot as plt, os, sys")
        self.assertEqual(len(self.run_cell("plt.plot([1]); sys.exit()").shown), 1)
        child = "plt.plot([1]); pid = os.fork()\nif not pid: sys.exit()\nos.waitpid(pid, 0)[1]"
        cell = self.run_ok(child)
        self.assertEqual((cell.result, len(cell.shown), cell.stderr), ("0", 1, ""))

    @needs("matplotlib")
    def test_figures_of_an_interrupted_cell_are_dropped(self):
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
    def test_figure_that_cannot_be_drawn_is_dropped(self):
        cell = self.run_ok("import matplotlib.pyplot as plt; plt.title('$\\\\frac$'); None")
        self.assertEqual(cell.shown, [])
        self.assertRegex(cell.stderr, r"^display: figure dropped: ")
        self.assertEqual(self.run_ok("plt.get_fignums()").stderr, "")

    @needs("numpy")
    def test_array_has_its_repr(self):
        self.assertEqual(self.run_ok("import numpy; numpy.zeros(2)").result, "array([0., 0.])")
