"""Modules that Python cells can import right after the start: the library, and packages of the user."""

import ast
import os
import subprocess
import sys
import tempfile
import time

from kernel_host import KERNEL, TIMEOUT_S, WITHOUT_SITE, KernelTest


class WithoutSiteTest(KernelTest):
    """Kernels started with -S, as in a session without a warm interpreter: cells cannot notice it."""

    def setUp(self):
        self.host = self.new_host(WITHOUT_SITE)
        self.bare = subprocess.run(
            [sys.executable, "-I", "-c", "import sys; print(sys.path, sys.prefix)"],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        ).stdout

    def test_first_cell_has_the_effects_of_site(self):
        for code in ("import sys; print(sys.path[1:], sys.prefix)", "print(*eval('__imp' + 'ort__')('sys').path[1:])"):
            with self.subTest(code=code):
                host = self.new_host(WITHOUT_SITE)
                self.assertEqual(host.run(code).stdout.split()[-1], self.run_bare(code).split()[-1])
        self.assertEqual(self.run_cell("quit(3)").status, "exited")
        self.assertEqual(self.run_ok("help").result[:4], "Type")

    def run_bare(self, code):
        command = [sys.executable, "-I", "-c", code.replace("path[1:]", "path")]
        return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S).stdout

    def test_later_cells_have_the_effects_of_site(self):
        self.assertEqual(self.run_ok("print(1)").stdout, "1\n")
        show = "import sys; print([entry for entry in sys.path[1:] if not entry.startswith('/nonexistent')], sys.prefix)"
        self.assertEqual(self.run_ok(show).stdout, self.bare)
        self.assertEqual(self.run_ok("sys.path[0], exit").result[:4], "('',")

    def test_started_interpreters_run_site(self):
        code = "import subprocess, sys; print(subprocess._args_from_interpreter_flags(), sys.flags.isolated)"
        self.assertEqual(self.run_ok(code).stdout, "['-I'] 1\n")

    def test_first_cell_can_fail(self):
        cell = self.run_error("def f():\n    1 / 0\nf()", "ZeroDivisionError")
        self.assertIn('File "<cell 1>", line 2, in f\n    1 / 0\n', cell.traceback)
        self.run_error("'", "SyntaxError")

    def test_first_call_behaves_like_any_other(self):
        codes = (
            "print(1)", "nothing(1)", "print(1 // 0, 2)", "max(1, 2)", "max(1, 2) # (", "print(1", "print(1)) + (2)",
            "print(y:=1)", "yield(1)", "callable(lambda: 1)", "print({x for x in 'ab' if 0})", "print(1 #)", "len('\\d')",
        )  # fmt: skip
        for code in codes:
            with self.subTest(code=code):
                first, later = self.new_host(WITHOUT_SITE), self.new_host(WITHOUT_SITE)
                later.run("import sys")
                cells = [first.run(code), later.run(code)]
                outcomes = [(cell.status, cell.stdout, cell.result, cell.error and cell.traceback) for cell in cells]
                self.assertEqual(str(outcomes[0]), str(outcomes[1]).replace("<cell 2>", "<cell 1>"))
                self.assertEqual([host.run("'y' in globals()").result for host in (first, later)], [str("y:" in code)] * 2)

    def test_source_of_cells_before_linecache_is_found(self):
        self.run_ok("def f(): return 1 / 0")
        self.run_ok("x = 1")
        cell = self.run_ok("import traceback\ntry: f()\nexcept Exception: traceback.print_exc()")
        self.assertIn("def f(): return 1 / 0\n", cell.stderr)
        self.assertEqual(self.run_ok("import inspect; inspect.getsource(f)").result, repr("def f(): return 1 / 0\n"))

    def test_modules_of_the_working_directory_are_found_but_not_by_the_kernel(self):
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


class UserPackagesTest(KernelTest):
    """Packages that `pip` installs for the user because it may not write to the interpreter's directory."""

    def setUp(self):
        home = tempfile.TemporaryDirectory()
        self.addCleanup(home.cleanup)
        self.home = home.name
        self.packages = os.path.join(home.name, f".local/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages")

    def start(self, flags="-I"):
        self.host = self.new_host(("env", f"HOME={self.home}", sys.executable, flags, KERNEL))

    def install(self, name, text="answer = 42"):
        os.makedirs(self.packages, exist_ok=True)
        time.sleep(0.02)  # changes of a directory are detected by its time stamp, which is coarse
        with open(os.path.join(self.packages, name), "w") as file:
            file.write(text)

    def test_module_is_found_as_soon_as_it_is_installed(self):
        for number, flags in enumerate(("-I", "-IS")):
            with self.subTest(flags=flags):
                self.start(flags)
                for name in (f"first_{number}", f"second_{number}"):
                    self.run_error(f"import {name}", "ModuleNotFoundError")
                    self.install(f"{name}.py")
                    self.assertEqual(self.run_ok(f"import {name}; {name}.answer").result, "42")

    def test_cell_can_install_a_module_and_import_it(self):
        self.start()
        cell = f"""
            import os
            try:
                import lacking
            except ImportError:
                os.makedirs({self.packages!r})
                with open({self.packages!r} + '/lacking.py', 'w') as file:
                    x = file.write('answer = 42')
                import lacking
            lacking.answer
            """
        self.assertEqual(self.run_ok(cell).result, "42")

    def test_user_packages_come_after_the_library_and_before_system_packages(self):
        bare = subprocess.run(
            [sys.executable, "-sc", "import sys; print(sys.path[1:])"], capture_output=True, text=True, cwd="/"
        ).stdout
        library = [entry for entry in ast.literal_eval(bare) if not entry.endswith("-packages")]
        for is_installed in (False, True):
            if is_installed:
                self.install("json.py")
            for flags in ("-I", "-IS"):
                with self.subTest(is_installed=is_installed, flags=flags):
                    self.start(flags)
                    self.assertEqual(self.run_ok("import json, sys; hasattr(json, 'answer')").result, "False")
                    path = ast.literal_eval(self.run_ok("sys.path").result)
                    index = path.index(self.packages)
                    self.assertEqual(path[:index], ["", *library])
                    rest = path[index + 1 :]
                    self.assertTrue(rest and all(entry.endswith("-packages") for entry in rest), path)

    def test_pth_files_are_processed(self):
        self.install("linked.pth", self.home)
        with open(os.path.join(self.home, "linked.py"), "w") as file:
            file.write("answer = 42")
        self.start()
        self.assertEqual(self.run_ok("import linked; linked.answer").result, "42")
