"""The virtual environment of a session in the kernel, PYTHONPATH, and hints for modules that are not installed."""

import os
import subprocess
import sys
import tempfile
import unittest

from kernel_host import KERNEL, TIMEOUT_S, KernelTest

PACKAGES = "lib/python%d.%d/site-packages" % sys.version_info[:2]


class EnvironmentTest(KernelTest):
    FLAGS = ("-I", "-IS")  # forked from a zygote, which has run `site`, and started cold

    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = directory.name
        self.venv = os.path.join(directory.name, ".venv")
        self.packages = os.path.join(self.venv, PACKAGES)

    def create(self):
        os.makedirs(self.packages)
        os.makedirs(f"{self.venv}/bin")
        os.symlink(os.path.realpath(sys.executable), f"{self.venv}/bin/python")
        self.write(f"{self.venv}/pyvenv.cfg", f"home = {os.path.dirname(os.path.realpath(sys.executable))}\n"
                   "include-system-site-packages = true\n")  # fmt: skip

    def write(self, path, text):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(text)

    def start(self, flags="-I", python=sys.executable, **variables):
        given = [f"{name}={value}" for name, value in {"VIRTUAL_ENV": self.venv, "HOME": self.directory, **variables}.items()]
        self.host = self.new_host(("env", *given, python, flags, KERNEL))

    def each_start(self):
        for python, flags in (*((sys.executable, flags) for flags in self.FLAGS), (f"{self.venv}/bin/python", "-IS")):
            with self.subTest(python=python, flags=flags):
                self.start(flags, python)
                yield

    def test_interpreter_is_that_of_the_environment(self):
        self.create()
        for _ in self.each_start():
            result = self.run_ok("import sys; sys.prefix, sys.exec_prefix, sys.executable").result
            self.assertEqual(result, repr((self.venv, self.venv, f"{self.venv}/bin/python")))
            code = "import subprocess; subprocess.run([sys.executable, '-c', 'import sys; print(sys.prefix)']).returncode"
            self.assertEqual(self.run_ok(code).stdout, f"{self.venv}\n")

    def test_packages_of_the_environment_come_first_and_those_of_the_system_stay(self):
        self.create()
        for _ in self.each_start():
            path = self.run_ok("import sys; print(*[e for e in sys.path if e.endswith('-packages')])").stdout.split()
            self.assertEqual(path[:2], [self.packages, f"{self.directory}/.local/{PACKAGES}"])
            self.assertEqual(len(path), len(set(path)))
            self.assertGreater(len(path), 2)

    def test_module_is_found_as_soon_as_it_is_installed(self):
        for number, flags in enumerate(self.FLAGS):  # the environment does not exist at first
            with self.subTest(flags=flags):
                self.start(flags)
                self.run_error(f"import new_{number}", "ModuleNotFoundError")
                self.write(f"{self.packages}/new_{number}.py", "answer = 42")
                self.assertEqual(self.run_ok(f"import new_{number}; new_{number}.answer").result, "42")
                changed = os.stat(self.packages)  # the time stamp of a directory is coarse
                self.write(f"{self.packages}/next_{number}.py", "answer = 43")
                os.utime(self.packages, ns=(changed.st_atime_ns, changed.st_mtime_ns))
                self.assertEqual(self.run_ok(f"import next_{number}; next_{number}.answer").result, "43")

    def test_editable_install_is_found_in_the_cell_that_makes_it(self):
        self.create()
        for number, _ in enumerate(self.each_start()):
            name = f"edited_{number}"
            self.run_error(f"import {name}", "ModuleNotFoundError")
            self.write(f"{self.directory}/source{number}/{name}.py", "answer = 42")
            code = f"""
                with open({self.packages!r} + "/__editable__.{name}.pth", "w") as file:
                    x = file.write({self.directory!r} + "/source{number}\\n")
                import {name}
                {name}.answer
                """
            self.assertEqual(self.run_ok(code).result, "42")

    def test_path_file_of_a_package_may_install_a_finder(self):
        self.create()
        self.start()
        finder = """
import importlib.util, sys
class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "mapped":
            return importlib.util.spec_from_loader(name, loader=None, is_package=True)
def install():
    sys.meta_path.append(Finder)
"""
        self.write(f"{self.packages}/__editable___mapped_finder.py", finder)
        self.write(f"{self.packages}/__editable__.mapped.pth", "import __editable___mapped_finder as f; f.install()\n")
        self.assertEqual(self.run_ok("import mapped; mapped.__name__").result, "'mapped'")
        self.run_error("import no_such_module_at_all", "ModuleNotFoundError")

    def test_missing_environment_changes_nothing(self):
        self.start()
        self.assertEqual(self.run_ok("import sys; sys.executable").result, repr(sys.executable))

    def test_entries_of_pythonpath_come_after_the_working_directory_and_before_the_library(self):
        later = f"{self.directory}/later"
        self.write(f"{self.directory}/given/json.py", "answer = 42")
        for flags in self.FLAGS:
            with self.subTest(flags=flags):
                self.start(flags, PYTHONPATH=f"{self.directory}/given::{later}")
                self.assertEqual(self.run_ok("import sys; sys.path[:3]").result, repr(["", f"{self.directory}/given", later]))
        self.assertEqual(self.run_ok("import json; json.answer").result, "42")
        self.run_error("import created_later", "ModuleNotFoundError")
        self.write(f"{later}/created_later.py", "answer = 43")
        self.assertEqual(self.run_ok("import created_later; created_later.answer").result, "43")


class HintTest(KernelTest):
    def hint(self, code):
        lines = self.run_cell(code).error["traceback"].splitlines()
        return lines[-1] if lines[-1].startswith("hint: ") else None

    def test_distribution_is_named(self):
        for name, distribution in (
            ("cv2_of_nobody", "cv2-of-nobody"),
            ("rest_framework", "djangorestframework"),
            ("pythoncom.server", "pywin32"),
        ):
            self.assertEqual(self.hint(f"import {name}"), f"hint: run `pip install {distribution}` with execute_command")

    def test_similar_module_is_named_first(self):
        expected = "hint: import `textwrap`, which is installed; otherwise run `pip install textwarp` with execute_command"
        self.assertEqual(self.hint("import textwarp"), expected)

    def test_modules_that_installing_would_not_add_have_no_hint(self):
        for code in ("import json.nothing", "import _no_such_thing_x.y\n" * 0 + "raise ModuleNotFoundError('no name')"):
            self.assertIsNone(self.hint(code))
        self.assertIsNone(self.hint("import google"))

    def test_threads_have_the_hint_too(self):
        code = "import threading\nt = threading.Thread(target=lambda: __import__('rest_framework'))\nt.start(); t.join()"
        self.assertIn("hint: run `pip install djangorestframework`", self.run_ok(code).stderr)


if __name__ == "__main__":
    unittest.main()
