"""What cells find in a kernel that has just started: the library, and what the user has installed."""

import ast
import os
import subprocess
import sys
import tempfile
import time

from kernel_host import DEADLINE_S, KERNEL, WITHOUT_SITE, KernelTest


class WithoutSiteTest(KernelTest):
    """Started with -S, as in a session that has no warm interpreter: nobody can tell."""

    def setUp(self):
        self.host = self.new_host(WITHOUT_SITE)
        self.bare = subprocess.run(
            [sys.executable, "-I", "-c", "import sys; print(sys.path, sys.prefix)"],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        ).stdout

    def test_the_first_cell_finds_what_site_makes(self):
        for code in ("import sys; print(sys.path[1:], sys.prefix)", "print(*eval('__imp' + 'ort__')('sys').path[1:])"):
            with self.subTest(code=code):
                host = self.new_host(WITHOUT_SITE)
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
                first, other = self.new_host(WITHOUT_SITE), self.new_host(WITHOUT_SITE)
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
            host = self.new_host(WITHOUT_SITE, cwd=directory)
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
